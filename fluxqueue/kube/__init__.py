"""The one door to the cluster: configuration, a thin async client, informers and leader election.

Used by the controller, the worker, the command line and the embedded cluster's own controllers.
Objects are plain dicts as the API server sent them; nothing here knows what a FluxJob means.
"""
