"""The table of built-in resources. The API server starts with :func:`build_registry`."""

from __future__ import annotations

from collections.abc import Callable

from localcluster.kinds import columns, core, event_views, selectable, volumes, workloads
from localcluster.kinds.actions import (
    Reviews,
    Tokens,
    bind_pod,
    check_eviction,
)
from localcluster.kinds.authorizer import GROUP as RBAC_GROUP
from localcluster.kinds.authorizer import AlwaysAllow, Authorizer
from localcluster.kinds.crd_strategy import DefinitionStrategy
from localcluster.kinds.jobs import JobStrategy
from localcluster.kinds.limits import LimitRangeStrategy, RuntimeClassStrategy
from localcluster.kinds.pods import PodStrategy
from localcluster.kinds.policies import BINDINGS, POLICIES
from localcluster.kinds.policy_config import PolicyBindingStrategy, PolicyStrategy
from localcluster.kinds.rbac import BindingStrategy, RoleStrategy
from localcluster.kinds.registry import (
    ALL_VERBS,
    Column,
    Registry,
    ResourceInfo,
    Subresource,
)
from localcluster.kinds.strategy import BaseStrategy
from localcluster.kinds.webhook_config import WebhookConfigStrategy
from localcluster.obj import Obj

_STATUS_VERBS = ("get", "patch", "update")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


class _Builder:
    """Collects the resources of one registry."""

    def __init__(self) -> None:
        self.registry = Registry()

    def add(
        self,
        group: str,
        plural: str,
        strategy: BaseStrategy,
        shown: tuple[Column, ...],
        *,
        short: str = "",
        categories: str = "",
        more: tuple[Subresource, ...] = (),
        fields: Callable[[Obj], dict[str, str]] | None = None,
        version: str = "v1",
    ) -> ResourceInfo:
        """Register one kind with its subresources."""
        kind = strategy.kind
        subresources = {s.name: s for s in more}
        if strategy.has_status:
            subresources["status"] = Subresource("status", kind, _STATUS_VERBS)
        info = ResourceInfo(
            group=group,
            version=version,
            kind=kind,
            plural=plural,
            singular=kind.lower(),
            namespaced=strategy.is_namespaced,
            strategy=strategy,
            short_names=_words(short),
            categories=_words(categories),
            verbs=ALL_VERBS,
            subresources=subresources,
            node=strategy.node,
            columns=shown,
        )
        if fields is not None:
            info.selectable = fields
        self.registry.register(info)
        return info


_SCALE = Subresource(
    "scale", "Scale", _STATUS_VERBS, how="scale", group="autoscaling", version="v1"
)


def _add_core(builder: _Builder, reviews: Reviews) -> None:
    add = builder.add
    add(
        "",
        "namespaces",
        core.NamespaceStrategy(),
        columns.NAMESPACES,
        short="ns",
        fields=selectable.namespaces,
        more=(Subresource("finalize", "Namespace", ("update",), how="update"),),
    )
    add(
        "",
        "nodes",
        core.NodeStrategy(),
        columns.NODES,
        short="no",
        fields=selectable.nodes,
    )
    add(
        "",
        "pods",
        PodStrategy(),
        columns.PODS,
        short="po",
        categories="all",
        fields=selectable.pods,
        more=(
            Subresource("binding", "Binding", ("create",), how="binding", handler=bind_pod),
            Subresource(
                "eviction",
                "Eviction",
                ("create",),
                how="eviction",
                group="policy",
                version="v1",
                handler=check_eviction,
            ),
            Subresource("log", "Pod", ("get",), how="log"),
        ),
    )
    add("", "configmaps", core.ConfigMapStrategy(), columns.CONFIG_MAPS, short="cm")
    add("", "secrets", core.SecretStrategy(), columns.SECRETS, fields=selectable.secrets)
    add(
        "",
        "serviceaccounts",
        core.ServiceAccountStrategy(),
        columns.NAME_AND_AGE,
        short="sa",
        more=(
            Subresource(
                "token",
                "TokenRequest",
                ("create",),
                how="token",
                group="authentication.k8s.io",
                version="v1",
                handler=reviews.token,
            ),
        ),
    )
    add(
        "",
        "services",
        core.ServiceStrategy(),
        columns.SERVICES,
        short="svc",
        categories="all",
        fields=selectable.services,
    )
    add("", "persistentvolumeclaims", core.ClaimStrategy(), columns.CLAIMS, short="pvc")
    add(
        "",
        "persistentvolumes",
        volumes.PersistentVolumeStrategy(),
        columns.NAME_AND_AGE,
        short="pv",
    )
    add("", "podtemplates", workloads.PodTemplateStrategy(), columns.POD_TEMPLATES)
    add("", "limitranges", LimitRangeStrategy(), columns.NAME_AND_CREATED, short="limits")


def _add_events(builder: _Builder) -> None:
    """Register events: two API groups, one storage."""
    builder.add(
        "",
        "events",
        event_views.EventStrategy(),
        columns.EVENTS,
        short="ev",
        fields=selectable.events,
    )
    view = builder.add(
        "events.k8s.io",
        "events",
        event_views.EventsEventStrategy(),
        columns.EVENTS,
        short="ev",
        fields=selectable.events,
    )
    view.storage = ("", "events")
    view.to_storage, view.from_storage = event_views.to_core, event_views.from_core


def _add_workloads(builder: _Builder) -> None:
    add = builder.add
    add("batch", "jobs", JobStrategy(), columns.JOBS, categories="all", fields=selectable.jobs)
    add(
        "apps",
        "deployments",
        workloads.DeploymentStrategy(),
        columns.DEPLOYMENTS,
        short="deploy",
        categories="all",
        more=(_SCALE,),
    )
    add(
        "apps",
        "replicasets",
        workloads.ReplicaSetStrategy(),
        columns.REPLICA_SETS,
        short="rs",
        categories="all",
        more=(_SCALE,),
    )
    add(
        "apps",
        "statefulsets",
        workloads.StatefulSetStrategy(),
        columns.STATEFUL_SETS,
        short="sts",
        categories="all",
        more=(_SCALE,),
    )
    add(
        "apps",
        "daemonsets",
        workloads.DaemonSetStrategy(),
        columns.DAEMON_SETS,
        short="ds",
        categories="all",
    )
    add(
        "apps",
        "controllerrevisions",
        workloads.ControllerRevisionStrategy(),
        columns.NAME_AND_AGE,
    )


def _add_rest(builder: _Builder) -> None:
    add = builder.add
    add("coordination.k8s.io", "leases", core.LeaseStrategy(), columns.LEASES)
    add(
        "scheduling.k8s.io",
        "priorityclasses",
        core.PriorityClassStrategy(),
        columns.PRIORITY_CLASSES,
        short="pc",
    )
    add("node.k8s.io", "runtimeclasses", RuntimeClassStrategy(), columns.NAME_AND_AGE)
    storage = "storage.k8s.io"
    add(
        storage,
        "storageclasses",
        volumes.StorageClassStrategy(),
        columns.NAME_AND_AGE,
        short="sc",
    )
    add(storage, "csinodes", volumes.CsiNodeStrategy(), columns.NAME_AND_AGE)
    add(
        "apiextensions.k8s.io",
        "customresourcedefinitions",
        DefinitionStrategy(),
        columns.NAME_AND_CREATED,
        short="crd crds",
        categories="api-extensions",
    )
    add(
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
        WebhookConfigStrategy(),
        columns.WEBHOOKS,
        categories="api-extensions",
    )
    add(
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
        WebhookConfigStrategy("ValidatingWebhookConfiguration"),
        columns.WEBHOOKS,
        categories="api-extensions",
    )
    for plural, policy_strategy, shown in (
        (POLICIES, PolicyStrategy(), columns.POLICIES),
        (BINDINGS, PolicyBindingStrategy(), columns.POLICY_BINDINGS),
    ):
        add(
            "admissionregistration.k8s.io",
            plural,
            policy_strategy,
            shown,
            categories="api-extensions",
        )
    add("policy", "poddisruptionbudgets", core.BudgetStrategy(), columns.BUDGETS, short="pdb")
    for kind in ("Role", "ClusterRole"):
        strategy = RoleStrategy(kind)
        add(RBAC_GROUP, f"{kind.lower()}s", strategy, columns.NAME_AND_CREATED)
        binding = f"{kind}Binding"
        add(RBAC_GROUP, f"{binding.lower()}s", BindingStrategy(binding), columns.BINDINGS)


def _add_reviews(builder: _Builder, reviews: Reviews) -> None:
    authentication, authorization = "authentication.k8s.io", "authorization.k8s.io"
    for group, kind, is_namespaced, answer in (
        (authentication, "TokenReview", False, reviews.token_review),
        (authentication, "SelfSubjectReview", False, reviews.who_am_i),
        (authorization, "SelfSubjectAccessReview", False, reviews.access),
        (authorization, "SubjectAccessReview", False, reviews.access),
        (authorization, "LocalSubjectAccessReview", True, reviews.access),
        (authorization, "SelfSubjectRulesReview", False, reviews.rules),
    ):
        strategy = BaseStrategy(kind)
        strategy.is_namespaced = is_namespaced
        info = builder.add(group, f"{kind.lower()}s", strategy, columns.NAME_AND_AGE)
        info.verbs = ("create",)
        info.create_only = answer


def build_registry(tokens: Tokens | None = None, authorizer: Authorizer | None = None) -> Registry:
    """Return all built-in resources. Without ``tokens``, token requests get a 501.

    ``authorizer`` answers access reviews. Without one everything is allowed.
    """
    builder = _Builder()
    reviews = Reviews(tokens, authorizer or AlwaysAllow())
    _add_core(builder, reviews)
    _add_events(builder)
    _add_workloads(builder)
    _add_rest(builder)
    _add_reviews(builder, reviews)
    return builder.registry
