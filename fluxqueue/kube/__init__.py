"""All access to the cluster: configuration, an async client, informers, leader election.

The controller, the worker, the command line and the embedded cluster's controllers use it. Objects
are plain dicts as the API server sent them. Nothing here knows what a FluxJob means.
"""
