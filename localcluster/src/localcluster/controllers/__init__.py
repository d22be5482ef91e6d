"""The controllers of kube-controller-manager.

They reach the API only through ``localcluster.client``, so each of them could run against a real
API server too. Decisions are pure functions in modules of their own. The loops around them are
thin.
"""
