"""The table of built-in resources; :func:`build_registry` is what the API server starts with."""

from __future__ import annotations

from fluxqueue.localcluster.resources.registry import Registry, ResourceInfo, Subresource
from fluxqueue.localcluster.resources.strategy import BaseStrategy

# group, version, kind, plural, namespaced, short names, categories, has status, has generation
_TABLE = """
- v1 Namespace namespaces - ns - status -
- v1 Node nodes - no - status -
- v1 Pod pods namespaced po all status generation
- v1 Event events namespaced ev - - -
- v1 ConfigMap configmaps namespaced cm - - -
- v1 Secret secrets namespaced - - - -
- v1 ServiceAccount serviceaccounts namespaced sa - - -
- v1 Service services namespaced svc all status -
- v1 PersistentVolumeClaim persistentvolumeclaims namespaced pvc - status -
batch v1 Job jobs namespaced - all status generation
batch v1 CronJob cronjobs namespaced cj all status generation
apps v1 Deployment deployments namespaced deploy all status generation
apps v1 ReplicaSet replicasets namespaced rs all status generation
apps v1 StatefulSet statefulsets namespaced sts all status generation
apps v1 DaemonSet daemonsets namespaced ds all status generation
apps v1 ControllerRevision controllerrevisions namespaced - - - -
coordination.k8s.io v1 Lease leases namespaced - - - -
scheduling.k8s.io v1 PriorityClass priorityclasses - pc - - generation
apiextensions.k8s.io v1 CustomResourceDefinition customresourcedefinitions - crd,crds api-extensions status generation
admissionregistration.k8s.io v1 MutatingWebhookConfiguration mutatingwebhookconfigurations - - api-extensions - generation
rbac.authorization.k8s.io v1 Role roles namespaced - - - -
rbac.authorization.k8s.io v1 RoleBinding rolebindings namespaced - - - -
rbac.authorization.k8s.io v1 ClusterRole clusterroles - - - - -
rbac.authorization.k8s.io v1 ClusterRoleBinding clusterrolebindings - - - - -
policy v1 PodDisruptionBudget poddisruptionbudgets namespaced pdb - status generation
"""


def _permissive(has_status: bool, has_generation: bool) -> BaseStrategy:
    strategy = BaseStrategy()
    strategy.has_status = has_status
    strategy.has_generation = has_generation
    return strategy


def _split(word: str) -> tuple[str, ...]:
    return () if word == "-" else tuple(word.split(","))


def build_registry() -> Registry:
    """All built-in resources."""
    registry = Registry()
    for line in _TABLE.strip().splitlines():
        group, version, kind, plural, scope, short, categories, status, generation = line.split()
        subresources: dict[str, Subresource] = {}
        if status == "status":
            subresources["status"] = Subresource("status", kind, ("get", "patch", "update"))
        registry.register(
            ResourceInfo(
                group="" if group == "-" else group,
                version=version,
                kind=kind,
                plural=plural,
                singular=kind.lower(),
                namespaced=scope == "namespaced",
                short_names=_split(short),
                categories=_split(categories),
                subresources=subresources,
                strategy=_permissive(status == "status", generation == "generation"),
            )
        )
    return registry
