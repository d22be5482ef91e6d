"""FluxNodePools proposed from what a cluster has already: one module for each kind of autoscaler.

``fluxqueue pools discover`` calls them with objects of the cluster. An administrator reviews what
comes out. ``following`` says how such a pool follows its source later. Nothing here reads or writes
a cluster, and nothing invents what no object says.
"""
