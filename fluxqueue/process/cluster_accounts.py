"""The accounts of the cluster's own controllers. Settings and admission know them."""

from __future__ import annotations

CLUSTER_CONTROLLERS = (
    "system:kube-controller-manager",
    *(
        f"system:serviceaccount:kube-system:{name}-controller"
        for name in ("cronjob", "deployment", "job", "replicaset", "replication", "statefulset")
    ),
)
"""Accounts of the cluster's own controllers. They make objects from templates that are guarded."""
