"""What the end-to-end suites share: their clusters, namespaces, objects and checks."""
