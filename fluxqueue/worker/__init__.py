"""The worker: procrastinate tasks that decide from rows and act on the cluster.

It watches nothing.
"""
