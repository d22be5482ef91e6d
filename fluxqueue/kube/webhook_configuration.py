"""The MutatingWebhookConfiguration: which requests the API server sends to the webhook.

Called by the command line (``fluxqueue up``, with a URL). A test compares it with the chart's
template (with a Service). Unmanaged objects never wait for the webhook. Its selectors and match
conditions exclude them inside the API server, so a webhook that is down does not block them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

from fluxqueue.workload import labels
from fluxqueue.workload.aliases import DEFAULT_ALIASES, Aliases
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds
from fluxqueue.workload.submitter import Submitters

NAME = "fluxqueue"
NAMESPACE_NAME = "kubernetes.io/metadata.name"

FailurePolicy = Literal["Fail", "Ignore"]
Rules = Sequence[Mapping[str, Any]]
Expressions = Sequence[Mapping[str, Any]]
"""The expressions of a selector. All of them must match."""


@dataclass(frozen=True, slots=True)
class WebhookEndpoint:
    """Say where the webhook listens: a ``url`` (outside the cluster), or a Service's name."""

    url: str | None = None
    service: str | None = None
    namespace: str = labels.OWN_NAMESPACE
    port: int = 443

    def client_config(self, ca_pem: bytes, path: str = labels.PATH) -> dict[str, Any]:
        """Return the ``clientConfig`` with the CA that signed the webhook's certificate.

        Raises
        ------
        ValueError
            Not exactly one of ``url`` and ``service`` is given.
        """
        if (self.url is None) == (self.service is None):
            raise ValueError("give either url or service")
        bundle = base64.b64encode(ca_pem).decode()
        if self.url is not None:
            return {"url": self.url.rstrip("/") + path, "caBundle": bundle}
        service = {
            "name": self.service,
            "namespace": self.namespace,
            "path": path,
            "port": self.port,
        }
        return {"service": service, "caBundle": bundle}


@dataclass(frozen=True, slots=True)
class WebhookConfiguration:
    """What the API server asks the webhook about, and where.

    Parameters
    ----------
    endpoint, ca_pem : where to call, and the CA that signed the certificate there.
    jobs_failure_policy, pods_failure_policy : ``Fail`` refuses a workload while the webhook is
        down. ``Ignore`` lets it run unqueued, outside the queue's accounting.
    is_opt_in : manage only namespaces labelled ``fluxqueue/managed: "true"``. Otherwise all
        namespaces are managed except those labelled ``"false"``.
    own_namespace : always excluded, so that fluxqueue's own components can always start.
    timeout_s : seconds the API server waits, 1 to 30.
    own_users : accounts of our components. Their changes of FluxJobs are not sent to the webhook.
    owner_kinds : kinds that make pods beside Jobs.
    submitters : accounts that submit on behalf of a user. Without controllers among them, admission
        does not write the submitter into templates.
    aliases : keys of other systems that stand for those of fluxqueue.
    """

    endpoint: WebhookEndpoint
    ca_pem: bytes
    _: KW_ONLY
    name: str = NAME
    jobs_failure_policy: FailurePolicy = "Fail"
    pods_failure_policy: FailurePolicy = "Fail"
    is_opt_in: bool = False
    own_namespace: str = labels.OWN_NAMESPACE
    timeout_s: int = 5
    own_users: Sequence[str] = ()
    owner_kinds: OwnerKinds = field(default_factory=OwnerKinds)
    submitters: Submitters | None = None
    aliases: Aliases = DEFAULT_ALIASES

    def build(self) -> dict[str, Any]:
        """Build the object."""
        namespaces = selected_namespaces(self.own_namespace, is_opt_in=self.is_opt_in)
        jobs, pods = self.jobs_failure_policy, self.pods_failure_policy
        asked = [
            *_asked_of_owners(self.owner_kinds, namespaces, pods),
            *_asked_of_workloads(namespaces, jobs, pods, self.aliases),
            *_asked_of_templates(namespaces, jobs, pods, self.submitters),
            *_asked_by_alias(self.owner_kinds, namespaces, pods, self.aliases),
            _asked_of_applied(namespaces, self.own_users),
            *_asked_of_ours(self.own_users),
        ]
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": self.name, "labels": {"app.kubernetes.io/name": "fluxqueue"}},
            "webhooks": [one.render(self.endpoint, self.ca_pem, self.timeout_s) for one in asked],
        }


@dataclass(frozen=True, slots=True)
class _Asked:
    """Describe one webhook: the objects and conditions for which the API server calls it.

    Selectors are lists of ``matchExpressions``. An empty list selects everything.
    """

    plural: str
    rules: Rules
    failure_policy: FailurePolicy
    namespaces: Expressions = ()
    objects: Expressions = ()
    conditions: Sequence[Mapping[str, str]] = ()
    path: str = labels.PATH

    def render(self, endpoint: WebhookEndpoint, ca_pem: bytes, timeout_s: int) -> dict[str, Any]:
        """Return the webhook in the form of the configuration."""
        written = {
            "name": f"{self.plural}.fluxqueue.converged-computing.org",
            "rules": list(self.rules),
            "failurePolicy": self.failure_policy,
            "clientConfig": endpoint.client_config(ca_pem, self.path),
            "namespaceSelector": _selector(self.namespaces),
            "objectSelector": _selector(self.objects),
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "matchPolicy": "Equivalent",
            "reinvocationPolicy": "IfNeeded",
            "timeoutSeconds": timeout_s,
        }
        return written | ({"matchConditions": list(self.conditions)} if self.conditions else {})


def _asked_of_owners(
    kinds: OwnerKinds, namespaces: Expressions, policy: FailurePolicy
) -> list[_Asked]:
    """Return the webhooks for objects that make pods beside Jobs, and for what these make.

    The latter apply only where all workloads are queued. These webhooks come before those of the
    workloads: the result for a Job depends on whether it opts in.
    """
    where_all_ask = [*namespaces, _in(labels.SETS, labels.SETS_MANAGED)]
    return [
        _Asked(
            "owners",
            [_owner_rule(one) for one in kinds],
            policy,
            namespaces,
            [_in(labels.MANAGED, "true")],
        ),
        # Where all workloads are queued, an object is suspended without opting in.
        _Asked(
            "suspended",
            [_owner_rule(one) | {"operations": ["CREATE"]} for one in kinds if one.suspend],
            policy,
            where_all_ask,
            [_not_opted_out()],
            path=labels.PATH_ALL_ASK,
        ),
        _Asked(
            "sets",
            [_on("CREATE", "batch", "jobs"), _on("CREATE", "", "pods")],
            policy,
            where_all_ask,
            [_not_opted_out()],
            _made_by_others(),
            path=labels.PATH_ALL_ASK,
        ),
    ]


def _asked_by_alias(
    kinds: OwnerKinds, namespaces: Expressions, policy: FailurePolicy, aliases: Aliases
) -> list[_Asked]:
    """Return the webhooks for objects that make pods, and that ask by the alias of a queue.

    The webhook ``owners`` selects objects by a label that these do not have yet.
    """
    rules = [_owner_rule(one) for one in kinds]
    said = {"key": labels.MANAGED, "operator": "DoesNotExist"}
    return [
        _Asked(
            f"aliased-{number}",
            rules,
            policy,
            namespaces,
            [said, {"key": key, "operator": "Exists"}],
        )
        for number, key in enumerate(aliases.of(labels.QUEUE), 1)
    ]


def _asked_of_workloads(
    namespaces: Expressions,
    jobs_policy: FailurePolicy,
    pods_policy: FailurePolicy,
    aliases: Aliases,
) -> list[_Asked]:
    jobs, pods = [_on("CREATE", "batch", "jobs")], [_on("CREATE", "", "pods")]
    objects = [_not_opted_out()]
    # The conditions also exclude these, but the API server must decode each pod to check them.
    bare = [*objects, {"key": labels.OF_A_BATCH_JOB, "operator": "DoesNotExist"}]
    return [
        _Asked("jobs", jobs, jobs_policy, namespaces, objects),
        _Asked("pods", pods, pods_policy, namespaces, bare, _bare_pods(aliases)),
        # A pod that the webhook has not seen stays gated, so its creation never waits for it.
        _Asked(
            "placed",
            pods,
            "Ignore",
            namespaces,
            _placed_pods(),
            path=labels.PATH_PLACE,
        ),
    ]


def _asked_of_templates(
    namespaces: Expressions,
    jobs_policy: FailurePolicy,
    pods_policy: FailurePolicy,
    submitters: Submitters | None,
) -> list[_Asked]:
    """Return the webhooks for objects that make pods or Jobs by a template.

    Admission writes the submitter into the template. Jobs of a CronJob are queued wherever Jobs
    are. An object that makes pods is sent if its template opts in. All of them are sent if the
    namespace says so.
    """
    if submitters is None or not submitters.controllers:
        return []
    objects = [_not_opted_out()]
    of_pods = [
        {
            **_on("CREATE", "apps", "deployments"),
            "operations": ["CREATE", "UPDATE"],
            "resources": ["deployments", "replicasets", "statefulsets"],
        },
        {**_on("CREATE", "", "replicationcontrollers"), "operations": ["CREATE", "UPDATE"]},
    ]
    cron_jobs = {**_on("CREATE", "batch", "cronjobs"), "operations": ["CREATE", "UPDATE"]}
    changed = _changed_by_others(submitters)
    where_all_ask = [*namespaces, _in(labels.SETS, labels.SETS_MANAGED)]
    return [
        _Asked("cronjobs", [cron_jobs], jobs_policy, namespaces, objects, changed),
        _Asked("templates", of_pods, pods_policy, namespaces, objects, [*changed, _asks()]),
        _Asked("set-templates", of_pods, pods_policy, where_all_ask, objects, changed),
    ]


def _changed_by_others(submitters: Submitters) -> list[dict[str, str]]:
    """Exclude what the cluster's controllers write, and changes of metadata alone.

    Such changes by a GitOps tool are included, because its annotation may name another user.
    """
    user, same = "request.userInfo.username", "object.spec == oldObject.spec"
    tools = _listed(submitters.accounts)
    return [
        {
            "name": "is-not-a-controller",
            "expression": f"!({user} in {_listed(submitters.controllers)})",
        },
        {
            "name": "is-changed",
            "expression": f"oldObject == null || !({same}) || {user} in {tools}",
        },
    ]


def _listed(texts: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{text}"' for text in sorted(texts)) + "]"


def _asks() -> dict[str, str]:
    """Exclude templates with pods that do not opt in."""
    template = "object.spec.template"
    schedulers = ", ".join(f'"{name}"' for name in sorted(labels.FORMER_SCHEDULERS))
    marks = f"has({template}.metadata) && has({template}.metadata.labels)"
    label = f'"{labels.MANAGED}" in {template}.metadata.labels'
    is_asking = f'{marks} && {label} && {template}.metadata.labels["{labels.MANAGED}"] == "true"'
    is_former = (
        f"has({template}.spec.schedulerName) && {template}.spec.schedulerName in [{schedulers}]"
    )
    return {
        "name": "asks",
        "expression": f"has({template}) && (({is_asking}) || ({is_former}))",
    }


def _asked_of_ours(own_users: Sequence[str]) -> list[_Asked]:
    """Return the webhooks for fluxqueue's own objects, which always fail closed.

    The requesting user decides what may be shown and changed. So a request is refused if the
    webhook has not seen it.
    """
    fluxjobs = _on("UPDATE", "jobs.converged-computing.org", "fluxjobs", "v1alpha1")
    reviews = _on("CREATE", "jobs.converged-computing.org", "placementreviews", "v1alpha1")
    return [
        _Asked("fluxjobs", [fluxjobs], "Fail", conditions=_steered(own_users)),
        _Asked("placementreviews", [reviews], "Fail"),
    ]


def _asked_of_applied(namespaces: Expressions, own_users: Sequence[str]) -> _Asked:
    """Return the webhook for queued Jobs that an apply of their manifest would change.

    It would resume a Job that waits, or remove the node of a released Job. Without the webhook, a
    policy or the API server refuses such a change. So it may fail open.
    """
    suspended = "has({0}.spec.suspend) && {0}.spec.suspend"
    template = "oldObject.spec.template"
    gates, marks = f"{template}.spec.schedulingGates", f"{template}.metadata.labels"
    resumed = (
        f"{suspended.format('oldObject')} && !({suspended.format('object')})"
        f' && has({gates}) && {gates}.exists(g, g.name == "{labels.GATE}")'
    )
    unpinned = (
        f'has({template}.metadata) && has({marks}) && "{labels.JOBID}" in {marks}'
        f" && object.spec.template != {template}"
    )
    applied = {"name": "is-applied", "expression": f"({resumed}) || ({unpinned})"}
    jobs, queued = _on("UPDATE", "batch", "jobs"), [_in(labels.MANAGED, "true")]
    conditions = [applied, _not_ours(own_users)]
    return _Asked("applied", [jobs], "Ignore", namespaces, queued, conditions)


def _not_ours(own_users: Sequence[str]) -> dict[str, str]:
    users = ", ".join(f'"{user}"' for user in own_users)
    return {"name": "is-not-ours", "expression": f"!(request.userInfo.username in [{users}])"}


def _placed_pods() -> list[dict[str, Any]]:
    """Select the pods of released Jobs with a placement of their indexes.

    By labels alone: the API server converts a pod for each look at a condition.
    """
    is_indexed = {"key": labels.COMPLETION_INDEX, "operator": "Exists"}
    return [_in(labels.MANAGED, "true"), _in(labels.PLACED, "true"), is_indexed]


def _selector(expressions: Expressions) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)} if expressions else {}


def _owner_rule(one: OwnerKind) -> dict[str, Any]:
    """Return the rule for a kind. Edits are included if they reach existing pods."""
    return {
        "operations": one.operations,
        "apiGroups": [one.group],
        "apiVersions": ["*"],
        "resources": [one.resource],
        "scope": "Namespaced",
    }


def _on(operation: str, group: str, resource: str, version: str = "v1") -> dict[str, Any]:
    return {
        "operations": [operation],
        "apiGroups": [group],
        "apiVersions": [version],
        "resources": [resource],
        "scope": "Namespaced",
    }


def selected_namespaces(own_namespace: str, *, is_opt_in: bool) -> list[dict[str, Any]]:
    """Return the selector of the namespaces with queued workloads."""
    wanted = _in(labels.MANAGED, "true") if is_opt_in else _not_opted_out()
    return [*tenants(own_namespace), wanted]


def tenants(own_namespace: str) -> list[dict[str, Any]]:
    """Return the selector of all namespaces except those of the system and our own."""
    names = sorted(labels.SYSTEM_NAMESPACES | {own_namespace})
    return [{"key": NAMESPACE_NAME, "operator": "NotIn", "values": names}]


def _in(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [value]}


def _not_opted_out() -> dict[str, Any]:
    return {"key": labels.MANAGED, "operator": "NotIn", "values": ["false"]}


def _steered(own_users: Sequence[str]) -> list[dict[str, str]]:
    """Select changes of a FluxJob's spec by people. Those by garbage collection are excluded."""
    changes = {"name": "spec-changes", "expression": "object.spec != oldObject.spec"}
    return [changes, _not_ours(own_users)]


def _made_by_others() -> list[dict[str, str]]:
    """Exclude objects without a controller, objects that Jobs make, and kinds never in a group.

    The templates of Jobs were seen at their admission.
    """
    never = '["CronJob", "DaemonSet", "Job", "Node"]'
    its = "o.controller == true && !(o.kind in " + never + ")"
    owners = "object.metadata.ownerReferences"
    return [
        {
            "name": "made-by-others",
            "expression": f"has({owners}) && {owners}.exists(o, has(o.controller) && {its})",
        }
    ]


def _bare_pods(aliases: Aliases) -> list[dict[str, str]]:
    """Exclude pods of controllers and of nodes, which are by far the most pods of a cluster.

    Pods that name a group are included, and so are pods of a set that opts in. Pods of Jobs were
    marked in their template.
    """
    group_keys = (*labels.group_keys(), *aliases.of(labels.POD_GROUP))
    keys = ", ".join(f'"{key}"' for key in group_keys)
    asking_keys = ", ".join(
        f'"{key}"' for key in (labels.MANAGED, labels.SPARK_ROLE, *aliases.of(labels.QUEUE))
    )
    in_labels = "has(object.metadata.labels) && k in object.metadata.labels"
    in_annotations = "has(object.metadata.annotations) && k in object.metadata.annotations"
    is_member = f"[{keys}].exists(k, ({in_labels}) || ({in_annotations}))"
    is_of_job = 'object.metadata.ownerReferences.exists(o, o.kind == "Job")'
    no_owner = "!has(object.metadata.ownerReferences)"
    schedulers = ", ".join(f'"{name}"' for name in sorted(labels.FORMER_SCHEDULERS))
    marked = (
        f"has(object.metadata.labels) && [{asking_keys}].exists(k, k in object.metadata.labels)"
    )
    former = f"has(object.spec.schedulerName) && object.spec.schedulerName in [{schedulers}]"
    asks = f"({marked}) || ({former})"
    mirror = f'"{labels.MIRROR}" in object.metadata.annotations'
    return [
        {
            "name": "no-owner-or-asks",
            "expression": f"{no_owner} || (!{is_of_job} && ({is_member} || {asks}))",
        },
        {
            "name": "no-mirror-pod",
            "expression": f"!(has(object.metadata.annotations) && {mirror})",
        },
    ]
