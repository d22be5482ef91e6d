"""kube-scheduler: which pod goes to which node, decided by pure functions (``decision``)."""
