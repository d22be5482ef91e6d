"""Names and URL paths of the API resources that fluxqueue uses.

Pure data for all code that talks to the cluster. A resource that is missing here can be constructed
in place: ``Resource("example.org", "v1", "widgets", "Widget", True)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """One API resource. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """``apiVersion`` as objects carry it: ``v1`` or ``batch/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def key(self) -> str:
        """``plural.group``, the name under which kubectl knows the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(
        self,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
    ) -> str:
        """Return the URL path of the collection or of one object.

        ``namespace=None`` on a namespaced resource means the collection of all namespaces. Naming
        an object there is a programming error (ValueError). The namespace of a cluster-scoped
        resource is ignored, so generic code need not check.
        """
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            root = f"{root}/namespaces/{quote(namespace, safe='')}"
        elif self.namespaced and name:
            raise ValueError(f"{self.key} {name!r}: a namespaced object needs its namespace")
        parts = [root, self.plural]
        if name == "":
            raise ValueError(f"{self.key}: an empty name would mean all of them")
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


NAMESPACES = Resource("", "v1", "namespaces", "Namespace", False)
NODES = Resource("", "v1", "nodes", "Node", False)
PODS = Resource("", "v1", "pods", "Pod", True)
EVENTS = Resource("", "v1", "events", "Event", True)
CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap", True)
SECRETS = Resource("", "v1", "secrets", "Secret", True)
SERVICES = Resource("", "v1", "services", "Service", True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount", True)

JOBS = Resource("batch", "v1", "jobs", "Job", True)
CRON_JOBS = Resource("batch", "v1", "cronjobs", "CronJob", True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", True)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet", True)
DAEMONSETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True)
CONTROLLER_REVISIONS = Resource("apps", "v1", "controllerrevisions", "ControllerRevision", True)

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", True)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
NEW_EVENTS = Resource("events.k8s.io", "v1", "events", "Event", True)
NODE_TOPOLOGIES = tuple(
    Resource(
        "topology.node.k8s.io", version, "noderesourcetopologies", "NodeResourceTopology", False
    )
    for version in ("v1alpha2", "v1alpha1")
)
"""The NUMA zones of nodes, the best version first. Few clusters serve any."""
CRDS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
)
ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    False,
)
ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
)
CLUSTER_ROLES = Resource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False)
CLUSTER_ROLE_BINDINGS = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
ROLES = Resource("rbac.authorization.k8s.io", "v1", "roles", "Role", True)
ROLE_BINDINGS = Resource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True)

FLUXJOBS = Resource("jobs.converged-computing.org", "v1alpha1", "fluxjobs", "FluxJob", True)
FLUXQUEUES = Resource("jobs.converged-computing.org", "v1alpha1", "fluxqueues", "FluxQueue", False)
PLACEMENT_REVIEWS = Resource(
    "jobs.converged-computing.org", "v1alpha1", "placementreviews", "PlacementReview", True
)
ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False
)
TOKEN_REVIEWS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False)
