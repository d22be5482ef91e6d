"""The client for users: what the command line and Python programs do with the queue.

It needs a kubeconfig, or the service account of a pod, and no database.
"""
