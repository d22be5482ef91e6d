"""For which waiting jobs nodes are asked for, what became of that, and which nodes must stay.

``provisioning`` plans after a cycle, with ``plan_search`` and ``node_packing`` for cheaper plans.
``node_requests`` reviews what was asked for. Nothing here reads or writes a cluster or a row.
"""
