"""The table of built-in resources. The API server starts with :func:`build_registry`."""

from __future__ import annotations

from localcluster.kinds import core, event_views, volumes, workloads
from localcluster.kinds.actions import Reviews, Tokens, bind_pod, check_eviction
from localcluster.kinds.authorizer import GROUP as RBAC_GROUP
from localcluster.kinds.authorizer import AlwaysAllow, Authorizer
from localcluster.kinds.columns import columns_of
from localcluster.kinds.crd_strategy import DefinitionStrategy
from localcluster.kinds.jobs import JobStrategy
from localcluster.kinds.limits import LimitRangeStrategy, RuntimeClassStrategy
from localcluster.kinds.pods import PodStrategy
from localcluster.kinds.policies import BINDINGS, POLICIES
from localcluster.kinds.policy_config import PolicyBindingStrategy, PolicyStrategy
from localcluster.kinds.rbac import BindingStrategy, RoleStrategy
from localcluster.kinds.registry import Registry, ResourceInfo, Subresource
from localcluster.kinds.selectable import fields_of
from localcluster.kinds.strategy import BaseStrategy
from localcluster.kinds.webhook_config import WebhookConfigStrategy

_STATUS_VERBS = ("get", "patch", "update")
_CORE, _APPS, _RBAC, _STORAGE = "", "apps", RBAC_GROUP, "storage.k8s.io"
_ADMISSION, _EVENTS = "admissionregistration.k8s.io", "events.k8s.io"
_AUTHENTICATION, _AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"
_SCALE = Subresource(
    "scale", "Scale", _STATUS_VERBS, how="scale", group="autoscaling", version="v1"
)
_FINALIZE = Subresource("finalize", "Namespace", ("update",), how="update")
_BINDING = Subresource("binding", "Binding", ("create",), how="binding", handler=bind_pod)
_EVICTION = Subresource(
    "eviction",
    "Eviction",
    ("create",),
    how="eviction",
    group="policy",
    version="v1",
    handler=check_eviction,
)
_LOG = Subresource("log", "Pod", ("get",), how="log")
_Kind = tuple[str, str, BaseStrategy, str, str, tuple[Subresource, ...]]


def _kinds() -> tuple[_Kind, ...]:
    """Return group, plural, strategy, short names, categories and subresources except status."""
    return (
        (_CORE, "namespaces", core.NamespaceStrategy(), "ns", "", (_FINALIZE,)),
        (_CORE, "nodes", core.NodeStrategy(), "no", "", ()),
        (_CORE, "pods", PodStrategy(), "po", "all", (_BINDING, _EVICTION, _LOG)),
        (_CORE, "configmaps", core.ConfigMapStrategy(), "cm", "", ()),
        (_CORE, "secrets", core.SecretStrategy(), "", "", ()),
        (_CORE, "serviceaccounts", BaseStrategy("ServiceAccount"), "sa", "", ()),
        (_CORE, "services", core.ServiceStrategy(), "svc", "all", ()),
        (_CORE, "persistentvolumeclaims", core.ClaimStrategy(), "pvc", "", ()),
        (_CORE, "persistentvolumes", volumes.PersistentVolumeStrategy(), "pv", "", ()),
        (_CORE, "podtemplates", workloads.PodTemplateStrategy(), "", "", ()),
        (_CORE, "limitranges", LimitRangeStrategy(), "limits", "", ()),
        (_CORE, "events", event_views.EventStrategy(), "ev", "", ()),
        (_EVENTS, "events", event_views.EventsEventStrategy(), "ev", "", ()),
        ("batch", "jobs", JobStrategy(), "", "all", ()),
        (_APPS, "deployments", workloads.DeploymentStrategy(), "deploy", "all", (_SCALE,)),
        (_APPS, "replicasets", workloads.ReplicaSetStrategy(), "rs", "all", (_SCALE,)),
        (_APPS, "statefulsets", workloads.StatefulSetStrategy(), "sts", "all", (_SCALE,)),
        (_APPS, "daemonsets", workloads.DaemonSetStrategy(), "ds", "all", ()),
        (_APPS, "controllerrevisions", BaseStrategy("ControllerRevision"), "", "", ()),
        ("coordination.k8s.io", "leases", core.LeaseStrategy(), "", "", ()),
        ("scheduling.k8s.io", "priorityclasses", core.PriorityClassStrategy(), "pc", "", ()),
        ("node.k8s.io", "runtimeclasses", RuntimeClassStrategy(), "", "", ()),
        (_STORAGE, "storageclasses", volumes.StorageClassStrategy(), "sc", "", ()),
        (_STORAGE, "csinodes", volumes.CsiNodeStrategy(), "", "", ()),
        (
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            DefinitionStrategy(),
            "crd crds",
            "api-extensions",
            (),
        ),
        *(
            (_ADMISSION, plural, strategy, "", "api-extensions", ())
            for plural, strategy in (
                ("mutatingwebhookconfigurations", WebhookConfigStrategy()),
                (
                    "validatingwebhookconfigurations",
                    WebhookConfigStrategy("ValidatingWebhookConfiguration"),
                ),
                (POLICIES, PolicyStrategy()),
                (BINDINGS, PolicyBindingStrategy()),
            )
        ),
        ("policy", "poddisruptionbudgets", core.BudgetStrategy(), "pdb", "", ()),
        (_RBAC, "roles", RoleStrategy("Role"), "", "", ()),
        (_RBAC, "rolebindings", BindingStrategy("RoleBinding"), "", "", ()),
        (_RBAC, "clusterroles", RoleStrategy("ClusterRole"), "", "", ()),
        (_RBAC, "clusterrolebindings", BindingStrategy("ClusterRoleBinding"), "", "", ()),
    )


def _add(
    registry: Registry,
    group: str,
    plural: str,
    strategy: BaseStrategy,
    short: str = "",
    categories: str = "",
    more: tuple[Subresource, ...] = (),
) -> ResourceInfo:
    """Register one kind with its subresources."""
    kind = strategy.kind
    subresources = {one.name: one for one in more}
    if strategy.has_status:
        subresources["status"] = Subresource("status", kind, _STATUS_VERBS)
    info = ResourceInfo(
        group=group,
        version="v1",
        kind=kind,
        plural=plural,
        singular=kind.lower(),
        namespaced=strategy.is_namespaced,
        strategy=strategy,
        short_names=tuple(short.split()),
        categories=tuple(categories.split()),
        subresources=subresources,
        node=strategy.node,
        columns=columns_of(plural),
        selectable=fields_of(plural),
    )
    registry.register(info)
    return info


def _add_reviews(registry: Registry, reviews: Reviews) -> None:
    """Register what is only created, and answered at once."""
    for group, kind, is_namespaced, answer in (
        (_AUTHENTICATION, "TokenReview", False, reviews.token_review),
        (_AUTHENTICATION, "SelfSubjectReview", False, reviews.who_am_i),
        (_AUTHORIZATION, "SelfSubjectAccessReview", False, reviews.access),
        (_AUTHORIZATION, "SubjectAccessReview", False, reviews.access),
        (_AUTHORIZATION, "LocalSubjectAccessReview", True, reviews.access),
        (_AUTHORIZATION, "SelfSubjectRulesReview", False, reviews.rules),
    ):
        strategy = BaseStrategy(kind)
        strategy.is_namespaced = is_namespaced
        info = _add(registry, group, f"{kind.lower()}s", strategy)
        info.verbs, info.create_only = ("create",), answer


def build_registry(tokens: Tokens | None = None, authorizer: Authorizer | None = None) -> Registry:
    """Return all built-in resources. Without ``tokens``, token requests get a 501.

    ``authorizer`` answers access reviews. Without one everything is allowed.
    """
    registry = Registry()
    reviews = Reviews(tokens, authorizer or AlwaysAllow())
    for kind in _kinds():
        _add(registry, *kind)
    for info in registry:
        if info.plural == "serviceaccounts":
            info.subresources = {"token": _token_request(reviews)}
        if info.group == _EVENTS:
            info.storage = ("", "events")
            info.to_storage, info.from_storage = event_views.to_core, event_views.from_core
    _add_reviews(registry, reviews)
    return registry


def _token_request(reviews: Reviews) -> Subresource:
    return Subresource(
        "token",
        "TokenRequest",
        ("create",),
        how="token",
        group=_AUTHENTICATION,
        version="v1",
        handler=reviews.token,
    )
