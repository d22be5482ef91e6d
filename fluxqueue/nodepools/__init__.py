"""Nodes that do not exist yet: what they are like, when to ask for them, and what brings them.

``pool`` reads a FluxNodePool. ``plan`` decides for which jobs nodes are asked for. ``proposals``
makes pools from what autoscalers have stored. All three are pure. ``cluster`` has what reads or
writes a cluster: providers, the sources of pools, and the protection of nodes. The rows are in
``db.store.node_pools``. Loops of the worker and the controller call the room.
"""
