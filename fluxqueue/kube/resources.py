"""Names and URL paths of the API resources that fluxqueue uses.

Pure data for all code that talks to the cluster. A resource that is missing here can be constructed
in place: ``ApiResource("example.org", "v1", "widgets", "Widget", True)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class ApiResource:
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


NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", False)
NODES = ApiResource("", "v1", "nodes", "Node", False)
PODS = ApiResource("", "v1", "pods", "Pod", True)
POD_TEMPLATES = ApiResource("", "v1", "podtemplates", "PodTemplate", True)
EVENTS = ApiResource("", "v1", "events", "Event", True)
CONFIGMAPS = ApiResource("", "v1", "configmaps", "ConfigMap", True)
SECRETS = ApiResource("", "v1", "secrets", "Secret", True)
SERVICES = ApiResource("", "v1", "services", "Service", True)
SERVICE_ACCOUNTS = ApiResource("", "v1", "serviceaccounts", "ServiceAccount", True)

JOBS = ApiResource("batch", "v1", "jobs", "Job", True)
CRON_JOBS = ApiResource("batch", "v1", "cronjobs", "CronJob", True)
DEPLOYMENTS = ApiResource("apps", "v1", "deployments", "Deployment", True)
REPLICASETS = ApiResource("apps", "v1", "replicasets", "ReplicaSet", True)
STATEFULSETS = ApiResource("apps", "v1", "statefulsets", "StatefulSet", True)
DAEMONSETS = ApiResource("apps", "v1", "daemonsets", "DaemonSet", True)
CONTROLLER_REVISIONS = ApiResource("apps", "v1", "controllerrevisions", "ControllerRevision", True)

LEASES = ApiResource("coordination.k8s.io", "v1", "leases", "Lease", True)
LIMIT_RANGES = ApiResource("", "v1", "limitranges", "LimitRange", True)
RUNTIME_CLASSES = ApiResource("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", False)
CLAIMS = ApiResource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", True)
VOLUMES = ApiResource("", "v1", "persistentvolumes", "PersistentVolume", False)
STORAGE_CLASSES = ApiResource("storage.k8s.io", "v1", "storageclasses", "StorageClass", False)
CSI_NODES = ApiResource("storage.k8s.io", "v1", "csinodes", "CSINode", False)
PRIORITY_CLASSES = ApiResource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
WORKLOAD_CLASSES = frozenset({("kueue.x-k8s.io", "WorkloadPriorityClass")})
"""API group and kind. The version depends on the release of Kueue that left the definition."""
NODE_TOPOLOGIES = tuple(
    ApiResource(
        "topology.node.k8s.io", version, "noderesourcetopologies", "NodeResourceTopology", False
    )
    for version in ("v1alpha2", "v1alpha1")
)
"""The NUMA zones of nodes, the best version first. Few clusters serve any."""
NODE_POOLS = tuple(
    ApiResource("karpenter.sh", version, "nodepools", "NodePool", False)
    for version in ("v1", "v1beta1")
)
"""From which Karpenter makes nodes, the best version first. Few clusters serve any."""
PROVISIONING_REQUESTS = ApiResource(
    "autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest", True
)
"""By which cluster-autoscaler adds nodes. Few clusters serve them."""
NODE_CLAIMS = tuple(
    ApiResource("karpenter.sh", version, "nodeclaims", "NodeClaim", False)
    for version in ("v1", "v1beta1")
)
"""The nodes that Karpenter has made or is making, the best version first."""
DEVICE_CLASSES = ApiResource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", False)
DEVICE_TAINT_RULES = tuple(
    ApiResource("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", False)
    for version in ("v1", "v1beta2", "v1alpha3")
)
"""Taints of devices by an administrator, the best version first. Few clusters serve any."""
RESOURCE_SLICES = ApiResource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", False)
RESOURCE_CLAIM_TEMPLATES = ApiResource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", True
)
RESOURCE_CLAIMS = ApiResource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", True)
CRDS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
)
MUTATING_WEBHOOKS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    False,
)
ADMISSION_POLICIES = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    False,
)
ADMISSION_POLICY_BINDINGS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    False,
)
MUTATING_POLICIES = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicies",
    "MutatingAdmissionPolicy",
    False,
)
"""Served as v1 since Kubernetes 1.36."""
MUTATING_POLICY_BINDINGS = ApiResource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    "MutatingAdmissionPolicyBinding",
    False,
)
CLUSTER_ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", False)
CLUSTER_ROLE_BINDINGS = ApiResource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False
)
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "roles", "Role", True)
ROLE_BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", True)

FLUXJOBS = ApiResource("jobs.converged-computing.org", "v1alpha1", "fluxjobs", "FluxJob", True)
FLUXQUEUES = ApiResource(
    "jobs.converged-computing.org", "v1alpha1", "fluxqueues", "FluxQueue", False
)
SHARING_POLICIES = ApiResource(
    "jobs.converged-computing.org",
    "v1alpha1",
    "resourcesharingpolicies",
    "ResourceSharingPolicy",
    False,
)
FLUX_NODE_POOLS = ApiResource(
    "jobs.converged-computing.org", "v1alpha1", "fluxnodepools", "FluxNodePool", False
)
FLUX_RESERVATIONS = ApiResource(
    "jobs.converged-computing.org", "v1alpha1", "fluxreservations", "FluxReservation", False
)
PLACEMENT_REVIEWS = ApiResource(
    "jobs.converged-computing.org", "v1alpha1", "placementreviews", "PlacementReview", True
)
ACCESS_REVIEWS = ApiResource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", False
)
TOKEN_REVIEWS = ApiResource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", False)
