"""The admission chain: what is completed or refused between decoding and the strategies.

The order is the real server's: NamespaceLifecycle, LimitRanger, ServiceAccount, node taint,
Priority, default tolerations, RuntimeClass, mutating webhooks, escalation of rights, policies,
validating webhooks. ``server`` calls :meth:`Admission.admit`.

Known difference: here policies and validating webhooks run directly after the mutating ones, before
the server has validated the object and given it a uid. The real server runs them last.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path

from localcluster.kinds.admission_request import Attributes
from localcluster.kinds.authorizer import AlwaysAllow, Authorizer
from localcluster.kinds.core import SYSTEM_PRIORITIES
from localcluster.kinds.escalation import check_escalation
from localcluster.kinds.limits import apply_runtime_class, limit_pod
from localcluster.kinds.policies import Policies
from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.webhook_call import WebhookClient
from localcluster.kinds.webhooks import Dispatcher
from localcluster.obj import Obj
from localcluster.types.refusals import StatusError, forbidden, not_found

_IMMORTAL_NAMESPACES = frozenset({"default", "kube-system", "kube-public"})
_NOT_READY, _UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
_TOLERATION_S = 300
_TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_TOKEN_EXPIRATION_S = 3607
_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"


class Admission:
    """The chain of admission plugins of one API server. :meth:`close` ends its connections."""

    def __init__(
        self,
        registry: Registry,
        authorizer: Authorizer | None = None,
        webhook_certificate: Path | None = None,
    ) -> None:
        self._authorizer = authorizer or AlwaysAllow()
        self._client = WebhookClient(webhook_certificate)
        self._dispatcher = Dispatcher(registry, self._client, self._authorizer)
        self._policies = Policies(registry, self._authorizer)

    async def close(self) -> None:
        """Close the connections to webhooks."""
        await self._client.close()

    async def admit(
        self,
        info: ResourceInfo,
        operation: str,
        obj: Obj | None,
        old: Obj | None,
        ctx: RequestContext,
    ) -> Obj | None:
        """Return the object to continue with (the same or a changed one). Raises StatusError.

        ``operation`` is CREATE, UPDATE, DELETE or CONNECT. ``obj`` is None on DELETE.
        """
        check_namespace(info, operation, obj, ctx)
        is_main = not ctx.subresource
        if obj is not None and operation == "CREATE" and is_main and info.group == "":
            if info.plural == "pods":
                complete_pod(obj, ctx)
            elif info.plural == "nodes":
                add_not_ready_taint(obj)
        at = Attributes(info, operation, obj, old, ctx)
        await self._dispatcher.mutate(at)
        if at.obj is not None:
            check_escalation(self._authorizer, info, at.obj, old, ctx)
        self._policies.validate(at)
        await self._dispatcher.validate(at)
        return at.obj


def check_namespace(
    info: ResourceInfo, operation: str, obj: Obj | None, ctx: RequestContext
) -> None:
    """NamespaceLifecycle: refuse to create in a namespace that is missing or being deleted."""
    if operation == "DELETE":
        if (info.group, info.plural) == ("", "namespaces") and ctx.name in _IMMORTAL_NAMESPACES:
            raise forbidden("", "namespaces", ctx.name, "this namespace may not be deleted")
        return
    if operation != "CREATE" or not info.namespaced or info.group == "authorization.k8s.io":
        return
    namespace = ctx.reader.get("", "namespaces", "", ctx.namespace)
    if namespace is None:
        raise not_found("", "namespaces", ctx.namespace)
    is_ending = namespace["metadata"].get("deletionTimestamp")
    if not is_ending or ctx.subresource:
        return
    name = _name_of(obj or {})
    error = forbidden(
        info.group,
        info.plural,
        name,
        f"unable to create new content in namespace {ctx.namespace} because it is being terminated",
    )
    details = error.details or {}
    details["causes"] = [
        {
            "reason": "NamespaceTerminating",
            "message": f"namespace {ctx.namespace} is being terminated",
            "field": "metadata.namespace",
        }
    ]
    raise StatusError(error.code, error.reason, error.message, details=details)


def _name_of(obj: Obj) -> str:
    """Return the name that errors show for an object without a generated name yet."""
    metadata = obj.get("metadata") or {}
    return str(metadata.get("name") or metadata.get("generateName", ""))


def complete_pod(pod: Obj, ctx: RequestContext) -> None:
    """Apply the plugins for new pods, from LimitRanger to RuntimeClass."""
    spec = pod["spec"]
    _limit(pod, ctx)
    _set_service_account(pod, spec, ctx)
    _set_priority(pod, spec, ctx)
    _add_tolerations(spec)
    _set_runtime_class(pod, spec, ctx)


def _set_service_account(pod: Obj, spec: Obj, ctx: RequestContext) -> None:
    name = spec.get("serviceAccountName") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    account = ctx.reader.get("", "serviceaccounts", ctx.namespace, name)
    if account is None and name != "default":
        why = (
            f"error looking up service account {ctx.namespace}/{name}: "
            f'serviceaccount "{name}" not found'
        )
        raise forbidden("", "pods", _name_of(pod), why)
    account = account or {}
    if account.get("imagePullSecrets") and not spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = copy.deepcopy(account["imagePullSecrets"])
    wants_token = spec.get("automountServiceAccountToken")
    if wants_token is None:
        wants_token = account.get("automountServiceAccountToken", True)
    if wants_token:
        _mount_token(spec)


def _mount_token(spec: Obj) -> None:
    lacking = [
        container
        for key in ("initContainers", "containers")
        for container in spec.get(key) or ()
        if all(m.get("mountPath") != _TOKEN_PATH for m in container.get("volumeMounts") or ())
    ]
    if not lacking:
        return
    name = "kube-api-access-" + "".join(random.choices(_SUFFIX, k=5))
    for container in lacking:
        mounts = container.setdefault("volumeMounts", [])
        mounts.append({"name": name, "readOnly": True, "mountPath": _TOKEN_PATH})
    spec.setdefault("volumes", []).append(
        {
            "name": name,
            "projected": {
                "sources": [
                    {
                        "serviceAccountToken": {
                            "expirationSeconds": _TOKEN_EXPIRATION_S,
                            "path": "token",
                        }
                    },
                    {
                        "configMap": {
                            "name": "kube-root-ca.crt",
                            "items": [{"key": "ca.crt", "path": "ca.crt"}],
                        }
                    },
                    {
                        "downwardAPI": {
                            "items": [
                                {
                                    "path": "namespace",
                                    "fieldRef": {
                                        "apiVersion": "v1",
                                        "fieldPath": "metadata.namespace",
                                    },
                                }
                            ]
                        }
                    },
                ],
                "defaultMode": 420,
            },
        }
    )


def _limit(pod: Obj, ctx: RequestContext) -> None:
    ranges = ctx.reader.list("", "limitranges", ctx.namespace)
    why = limit_pod(pod, ranges)
    if why:
        raise forbidden("", "pods", _name_of(pod), why)


def _set_runtime_class(pod: Obj, spec: Obj, ctx: RequestContext) -> None:
    name = spec.get("runtimeClassName")
    found = ctx.reader.get("node.k8s.io", "runtimeclasses", "", name) if name else None
    why = apply_runtime_class(pod, found)
    if why:
        raise forbidden("", "pods", _name_of(pod), why)


def _set_priority(pod: Obj, spec: Obj, ctx: RequestContext) -> None:
    name = spec.get("priorityClassName", "")
    value, policy = 0, "PreemptLowerPriority"
    pod_name = _name_of(pod)
    if name:
        found = ctx.reader.get("scheduling.k8s.io", "priorityclasses", "", name)
        if found is None and name in SYSTEM_PRIORITIES:
            found = {"value": SYSTEM_PRIORITIES[name][0]}
        if found is None:
            raise forbidden("", "pods", pod_name, f"no PriorityClass with name {name} was found")
    else:
        found = _global_default(ctx)
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    if found is not None:
        value = found.get("value", 0)
        policy = found.get("preemptionPolicy", policy)
    given = spec.get("priority")
    if given is not None and given != value:
        why = (
            f"the integer value of priority ({given}) must not be provided in pod spec; priority "
            f"admission controller computed {value} from the given PriorityClass name"
        )
        raise forbidden("", "pods", pod_name, why)
    spec["priority"] = value
    spec.setdefault("preemptionPolicy", policy)


def _global_default(ctx: RequestContext) -> Obj | None:
    classes = ctx.reader.list("scheduling.k8s.io", "priorityclasses")
    chosen = [c for c in classes if c.get("globalDefault")]
    return min(chosen, key=lambda c: int(c.get("value", 0))) if chosen else None


def _tolerates(toleration: Obj, key: str) -> bool:
    return toleration.get("key", "") in (key, "") and toleration.get("effect", "") in (
        "NoExecute",
        "",
    )


def _add_tolerations(spec: Obj) -> None:
    tolerations = spec.get("tolerations") or []
    added = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _TOLERATION_S,
        }
        for key in (_NOT_READY, _UNREACHABLE)
        if not any(_tolerates(t, key) for t in tolerations)
    ]
    if added:
        spec["tolerations"] = [*tolerations, *added]


def add_not_ready_taint(node: Obj) -> None:
    """TaintNodesByCondition: a new node takes no pods until its controller has seen it."""
    taints = node["spec"].setdefault("taints", [])
    if not any(t.get("key") == _NOT_READY and t.get("effect") == "NoSchedule" for t in taints):
        taints.append({"key": _NOT_READY, "effect": "NoSchedule"})
