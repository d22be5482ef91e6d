"""The controller: sees the cluster, writes rows and defers tasks. It never matches.

``main`` chooses who leads and starts what the leader does: ``observing`` the cluster, kopf's
operator of our own resources (``operator`` → ``steered``, ``reviews``), certificates, gauges.
"""
