"""What node pools read and write of a cluster.

``providers`` bring nodes. ``pool_sources`` reads what autoscalers have stored, and
``pool_following`` keeps discovered pools in step with it.
"""
