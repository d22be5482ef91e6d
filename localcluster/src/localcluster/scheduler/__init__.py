"""kube-scheduler: which pod runs on which node. Pure functions (``decision``) decide."""
