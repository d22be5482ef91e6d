"""The controller: observes the cluster, writes rows and defers tasks. It never matches.

``main`` elects the leader and starts its parts: ``observing`` the cluster, kopf's operator for our
own resources (``operator`` → ``steered``, ``reviews``), certificates and gauges.
"""
