"""The matcher of the scheduling cycle: shares of nodes' pools, as a matrix of nodes x resources.

The compiled form of the graph matcher for a cluster of Kubernetes nodes (docs/matcher.md says what
is equal and what is not). ``pool_set`` books and matches, ``timeline`` and ``room`` know the
future, ``node_masks`` the constraints, ``filling`` the match policies; ``reasons`` and ``waiting``
put into words why something does not fit. Pure, like all of ``graph``.
"""
