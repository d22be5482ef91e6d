"""Strategy of Pods: creation, changes while gated, pending and running, graceful deletion.

Mutability follows ``ValidatePodUpdate``. The recordings pod-mutability-* test it.
"""

from __future__ import annotations

import copy
from typing import Any

from localcluster.kinds import meta
from localcluster.kinds.podspec import (
    default_pod_resources,
    default_pod_spec,
    qos_class,
)
from localcluster.kinds.podspec_rules import validate_pod_spec
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types.refusals import FieldError, not_allowed, wrong

GATED_CONDITION = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_ONLY_THESE = (
    "pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only "
    "additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set "
    "to 1 if it was previously negative)"
)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


class PodStrategy(BaseStrategy):
    """core/v1 Pod."""

    type_name = "Pod"
    has_status = True
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Set the defaults of templates, service links, and requests from limits."""
        spec = obj["spec"]
        default_pod_spec(spec)
        spec.setdefault("enableServiceLinks", True)
        default_pod_resources(spec)

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Set the first status. The SchedulingGated condition is present from the start."""
        obj["metadata"]["generation"] = 1
        spec = obj["spec"]
        obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
        if spec.get("schedulingGates"):
            obj["status"]["conditions"] = [dict(GATED_CONDITION, lastTransitionTime=ctx.now)]
        warn_duplicate_env(spec, "spec", ctx)

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the rules of a new pod."""
        spec = obj["spec"]
        errors = validate_pod_spec(spec, "spec")
        if spec.get("nodeName") and spec.get("schedulingGates"):
            errors.append(
                not_allowed(
                    "spec.nodeName", "cannot be set until all schedulingGates have been cleared"
                )
            )
        return errors

    def prepare_status(self, new: Obj, old: Obj) -> None:
        """Restore owner references and the QoS class, which /status cannot change."""
        owners = old["metadata"].get("ownerReferences")
        if owners is not None:
            new["metadata"]["ownerReferences"] = owners
        else:
            new["metadata"].pop("ownerReferences", None)
        qos = old.get("status", {}).get("qosClass")
        if qos and not new.setdefault("status", {}).get("qosClass"):
            new["status"]["qosClass"] = qos

    def validate_update(
        self, new: Obj, old: Obj, subresource: str, ctx: RequestContext
    ) -> list[FieldError]:
        """Check metadata and spec.

        Metadata rules are applied twice as in the real server, so both causes are listed.
        """
        errors = meta.validate_meta_update(new["metadata"], old["metadata"])
        if subresource == "status":
            return errors + errors
        return errors + errors + self.validate_change(new, old, ctx)

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check what an update of the main path may change."""
        if new["spec"] == old["spec"]:
            return []
        return validate_spec_change(new["spec"], old["spec"])

    def delete_grace_s(self, obj: Obj, requested_s: int | None) -> int:
        """Return 0 for unbound and finished pods. Other pods wait for their node."""
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        if not spec.get("nodeName") or status.get("phase") in ("Failed", "Succeeded"):
            return 0
        grace = (
            spec.get("terminationGracePeriodSeconds", 30) if requested_s is None else requested_s
        )
        return 1 if grace < 0 else int(grace)


def warn_duplicate_env(spec: Obj, path: str, ctx: RequestContext) -> None:
    """Warn of an environment variable that hides an earlier one."""
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key) or ()):
            seen: set[str] = set()
            for position, env in enumerate(container.get("env") or ()):
                name = env.get("name", "")
                if name in seen:
                    ctx.warnings.append(
                        f"{path}.{key}[{index}].env[{position}]: hides previous definition of "
                        f'"{name}", which may be dropped when using apply'
                    )
                seen.add(name)


def validate_spec_change(new: Obj, old: Obj) -> list[FieldError]:
    """Apply ``ValidatePodUpdate`` to the two specs."""
    counts = [
        key
        for key in ("containers", "initContainers")
        if len(new.get(key) or ()) != len(old.get(key) or ())
    ]
    if counts:
        text = "pod updates may not add or remove containers"
        return [not_allowed(f"spec.{key}", text) for key in counts]
    errors = _validate_deadline(new, old)
    errors += _validate_added_tolerations(new.get("tolerations"), old.get("tolerations"))
    errors += _validate_removed_gates(new.get("schedulingGates"), old.get("schedulingGates"))
    munged = copy.deepcopy(new)
    _put_back(munged, old)
    if old.get("schedulingGates"):
        errors += _put_back_gated(munged, old)
    if munged != old:
        errors.append(not_allowed("spec", f"{_ONLY_THESE}{_changed(munged, old)}"))
    return errors


def _changed(munged: Obj, old: Obj) -> str:
    """Return the changed fields. The real server prints a diff of its internal types here."""
    keys = sorted(k for k in {*munged, *old} if munged.get(k) != old.get(k))
    return "\nchanged: " + ", ".join(f"spec.{key}" for key in keys)


def _validate_deadline(new: Obj, old: Obj) -> list[FieldError]:
    after, before = new.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    path = "spec.activeDeadlineSeconds"
    if after is not None:
        if not 0 <= after < 2**31:
            text = "must be between 0 and 2147483647, inclusive"
            return [wrong(path, after, text)]
        if before is not None and before < after:
            return [wrong(path, after, "must be less than or equal to previous value")]
    elif before is not None:
        return [wrong(path, None, "must not update from a positive integer to nil value")]
    return []


def _validate_added_tolerations(new: Any, old: Any) -> list[FieldError]:
    def identity(toleration: Obj) -> tuple[Any, ...]:
        return tuple(toleration.get(k, "") for k in ("key", "operator", "value", "effect"))

    present = {identity(t) for t in new or ()}
    if any(identity(t) not in present for t in old or ()):
        text = "existing toleration can not be modified except its tolerationSeconds"
        return [not_allowed("spec.tolerations", text)]
    return []


def _validate_removed_gates(new: Any, old: Any) -> list[FieldError]:
    before = {gate.get("name") for gate in old or ()}
    return [
        not_allowed(
            f"spec.schedulingGates[{index}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for index, gate in enumerate(new or ())
        if gate.get("name") not in before
    ]


def _restore(target: Obj, source: Obj, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _put_back(munged: Obj, old: Obj) -> None:
    for key in ("containers", "initContainers"):
        for container, before in zip(munged.get(key) or (), old.get(key) or (), strict=True):
            _restore(container, before, "image")
    for key in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
        _restore(munged, old, key)
    if (old.get("terminationGracePeriodSeconds") or 0) < 0:
        _restore(munged, old, "terminationGracePeriodSeconds")


def _put_back_gated(munged: Obj, old: Obj) -> list[FieldError]:
    """Check additions to selector and affinity, which are allowed while gated.

    They are then removed from ``munged``, so that the rest can be compared.
    """
    errors: list[FieldError] = []
    selector, before = munged.get("nodeSelector"), old.get("nodeSelector")
    if selector != before:
        if any((selector or {}).get(key) != value for key, value in (before or {}).items()):
            text = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            errors.append(wrong("spec.nodeSelector", selector, text))
        _restore(munged, old, "nodeSelector")
    affinity = munged.get("affinity") or {}
    node, old_node = affinity.get("nodeAffinity"), (old.get("affinity") or {}).get("nodeAffinity")
    if node != old_node:
        errors += _validate_affinity_additions(node or {}, old_node or {})
        others = {k: v for k, v in affinity.items() if k != "nodeAffinity"}
        if old_node is not None:
            others["nodeAffinity"] = old_node
        if others or "affinity" in old:
            munged["affinity"] = others
        else:
            munged.pop("affinity", None)
    return errors


def _validate_affinity_additions(new: Obj, old: Obj) -> list[FieldError]:
    terms = (old.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if not terms:
        return []
    path = f"spec.affinity.nodeAffinity.{_REQUIRED}.nodeSelectorTerms"
    after = (new.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if len(after) != len(terms):
        text = "no additions/deletions to non-empty NodeSelectorTerms list are allowed"
        value = [internal_term(t) for t in after] or None
        return [wrong(path, value, text)]
    text = "only additions are allowed (no mutations or deletions)"
    return [
        wrong(f"{path}[{index}]", internal_term(term), text)
        for index, (term, before) in enumerate(zip(after, terms, strict=True))
        if not _only_adds(term, before)
    ]


def _only_adds(term: Obj, before: Obj) -> bool:
    for key in ("matchExpressions", "matchFields"):
        kept = before.get(key) or []
        if (term.get(key) or [])[: len(kept)] != kept:
            return False
    return bool(before)


def internal_term(term: Obj) -> Obj:
    """Return a node selector term as the server's internal type prints it."""

    def rules(key: str) -> Any:
        return [
            {"Key": r.get("key", ""), "Operator": r.get("operator", ""), "Values": r.get("values")}
            for r in term.get(key) or ()
        ] or None

    return {"MatchExpressions": rules("matchExpressions"), "MatchFields": rules("matchFields")}
