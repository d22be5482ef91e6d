"""What kube-controller-manager does, controller by controller.

They reach the API only through ``localcluster.client``, so each of them could run against a real
API server as well. Decisions are pure functions in modules of their own; loops around them are
thin.
"""
