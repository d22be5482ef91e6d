"""fluxqueue: a durable, queue-based job controller for Kubernetes.

Importing the package has no side effects. docs/architecture.md is the map.
"""

__version__ = "0.1.0"
