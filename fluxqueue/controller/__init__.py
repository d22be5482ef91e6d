"""The controller: sees the cluster, writes rows and defers tasks. It never matches."""
