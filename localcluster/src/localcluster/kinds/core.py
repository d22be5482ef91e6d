"""Strategies of the small core/v1 kinds: Namespace, Node, ConfigMap, Secret, Service ...

Pods and events have modules of their own.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from localcluster.kinds.meta import immutable
from localcluster.kinds.podspec_rules import not_negative, unsupported
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.refusals import (
    FieldError,
    all_wrong,
    duplicate,
    not_allowed,
    required,
    wrong,
)

_TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_CONTENT_MAX_BYTES = 1024 * 1024


class NamespaceStrategy(BaseStrategy):
    """core/v1 Namespace. ``spec.finalizers`` change only through /finalize."""

    type_name = "Namespace"
    is_namespaced = False
    has_status = True
    name_rule = staticmethod(names.dns_label)

    def default(self, obj: Obj) -> None:
        """Add the name as a label."""
        name = obj["metadata"].get("name")
        if name:
            labels = obj["metadata"].setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = name

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Set phase Active and the finalizer of the namespace controller."""
        super().prepare_create(obj, ctx)
        self.default(obj)
        obj["status"] = {"phase": "Active"}
        finalizers = obj["spec"].get("finalizers") or []
        obj["spec"]["finalizers"] = (
            finalizers if "kubernetes" in finalizers else [*finalizers, "kubernetes"]
        )

    def prepare_update(self, new: Obj, old: Obj, subresource: str, ctx: RequestContext) -> None:
        """Keep spec.finalizers and status. /finalize changes only the finalizers."""
        if subresource == "finalize":
            new["status"] = old.get("status", {})
            return
        super().prepare_update(new, old, subresource, ctx)
        kept = (old.get("spec") or {}).get("finalizers")
        new["spec"] = {"finalizers": kept} if kept else {}

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Return no errors: only the metadata rules apply."""
        return []


class NodeStrategy(BaseStrategy):
    """core/v1 Node. Unlike other kinds it keeps the status of the POST."""

    type_name = "Node"
    is_namespaced = False
    has_status = True

    def default(self, obj: Obj) -> None:
        """Copy podCIDR to podCIDRs."""
        spec = obj["spec"]
        if spec.get("podCIDR") and not spec.get("podCIDRs"):
            spec["podCIDRs"] = [spec["podCIDR"]]

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Keep the status. Allocatable defaults to capacity."""
        obj["metadata"].pop("generation", None)
        status = obj["status"]
        if status.get("capacity") and not status.get("allocatable"):
            status["allocatable"] = dict(status["capacity"])

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check taints: keys, effects, no duplicates.

        Errors name metadata.taints, as in the original.
        """
        errors: list[FieldError] = []
        seen: set[tuple[str, str]] = set()
        for index, taint in enumerate(obj["spec"].get("taints") or ()):
            at = f"metadata.taints[{index}]"
            key, effect = taint.get("key", ""), taint.get("effect", "")
            errors += all_wrong(f"{at}.key", key, names.qualified_name(key))
            value = taint.get("value", "")
            errors += all_wrong(f"{at}.value", value, names.label_value(value))
            if not effect:
                errors.append(required(f"{at}.effect"))
            elif effect not in _TAINT_EFFECTS:
                errors.append(unsupported(f"{at}.effect", effect, _TAINT_EFFECTS))
            if (key, effect) in seen:
                errors.append(duplicate(at, taint))
            seen.add((key, effect))
        return errors

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Allow providerID and podCIDRs to be set once.

        Rules are applied twice, so both causes are listed as in the real server.
        """
        errors = self.validate(new, ctx)
        errors = errors + errors
        before, after = old["spec"], new["spec"]
        if before.get("providerID") and after.get("providerID") != before["providerID"]:
            text = 'node updates may not change providerID except from "" to valid'
            errors.append(not_allowed("spec.providerID", text))
        if before.get("podCIDRs") and after.get("podCIDRs") != before["podCIDRs"]:
            text = 'node updates may not change podCIDR except from "" to valid'
            errors.append(not_allowed("spec.podCIDRs", text))
        return errors


class ConfigMapStrategy(BaseStrategy):
    """core/v1 ConfigMap."""

    type_name = "ConfigMap"

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the keys. A key may not be in both data and binaryData."""
        twice = sorted(set(obj.get("data") or ()) & set(obj.get("binaryData") or ()))
        text = "duplicate of key present in binaryData"
        errors = [wrong(f"data[{key}]", key, text) for key in twice]
        return _validate_keys(obj, ("data", "binaryData")) + errors

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse changes of immutable objects."""
        return self.validate(new, ctx) + _validate_immutable_flag(new, old, ("data", "binaryData"))


class SecretStrategy(BaseStrategy):
    """core/v1 Secret. ``stringData`` is merged into ``data``."""

    type_name = "Secret"

    def default(self, obj: Obj) -> None:
        """Set type Opaque. stringData has precedence over data."""
        obj.setdefault("type", "Opaque")
        texts = obj.pop("stringData", None)
        if texts:
            data = obj.setdefault("data", {})
            for key, text in texts.items():
                data[key] = base64.b64encode(text.encode()).decode()

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check keys, base64, and the keys that a type requires."""
        errors = _validate_keys(obj, ("data",))
        data = obj.get("data") or {}
        for key in sorted(data):
            try:
                base64.b64decode(data[key], validate=True)
            except (binascii.Error, ValueError):
                errors.append(wrong(f"data[{key}]", "<secret>", "not valid base64"))
        if obj.get("type") == "kubernetes.io/tls":
            errors += [
                required(f"data[{key}]") for key in ("tls.crt", "tls.key") if key not in data
            ]
        return errors

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse a change of the type."""
        errors = self.validate(new, ctx)
        if new.get("type") != old.get("type"):
            errors.append(immutable("type", new.get("type")))
        return errors + _validate_immutable_flag(new, old, ("data",))


def _validate_keys(obj: Obj, sections: tuple[str, ...]) -> list[FieldError]:
    errors: list[FieldError] = []
    total = 0
    for section in sections:
        for key, value in sorted((obj.get(section) or {}).items()):
            total += len(value)
            errors += all_wrong(f"{section}[{key}]", key, names.config_map_key(key))
    if total > _CONTENT_MAX_BYTES:
        text = f"may not be more than {_CONTENT_MAX_BYTES} bytes"
        errors.append(FieldError("FieldValueTooLong", "", None, text))
    return errors


def _validate_immutable_flag(new: Obj, old: Obj, sections: tuple[str, ...]) -> list[FieldError]:
    if not old.get("immutable"):
        return []
    text = "field is immutable when `immutable` is set"
    errors: list[FieldError] = []
    if not new.get("immutable"):
        errors.append(not_allowed("immutable", text))
    errors += [not_allowed(key, text) for key in sections if new.get(key) != old.get(key)]
    return errors


class ServiceStrategy(BaseStrategy):
    """core/v1 Service. It is stored with its defaults, but no traffic is routed here."""

    type_name = "Service"
    has_status = True
    name_rule = staticmethod(names.dns_label_1035)

    def default(self, obj: Obj) -> None:
        """Set ClusterIP without an address from a pool: headless unless an address was given."""
        spec = obj["spec"]
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        if spec["type"] != "ExternalName":
            spec.setdefault("clusterIP", "None")
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
            spec.setdefault("internalTrafficPolicy", "Cluster")
            spec.setdefault("ipFamilies", ["IPv4"])
            spec.setdefault("ipFamilyPolicy", "SingleStack")
        for port in spec.get("ports") or ():
            port.setdefault("protocol", "TCP")
            if port.get("targetPort") in (None, 0, ""):
                port["targetPort"] = port.get("port", 0)

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Set an empty load balancer status."""
        super().prepare_create(obj, ctx)
        obj["status"] = {"loadBalancer": {}}

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check type and ports."""
        spec = obj["spec"]
        types = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
        errors: list[FieldError] = []
        if spec.get("type") not in types:
            errors.append(unsupported("spec.type", spec.get("type"), types))
        ports = spec.get("ports") or []
        if not ports and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
            errors.append(required("spec.ports"))
        for index, port in enumerate(ports):
            number = port.get("port", 0)
            if not 1 <= number <= 65535:
                text = "must be between 1 and 65535, inclusive"
                errors.append(wrong(f"spec.ports[{index}].port", number, text))
            if len(ports) > 1 and not port.get("name"):
                errors.append(required(f"spec.ports[{index}].name"))
        return errors


class ClaimStrategy(BaseStrategy):
    """core/v1 PersistentVolumeClaim. It is stored, but no volumes are provisioned here."""

    type_name = "PersistentVolumeClaim"
    has_status = True

    def default(self, obj: Obj) -> None:
        """Set the volume mode to file system."""
        obj["spec"].setdefault("volumeMode", "Filesystem")

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Set phase Pending."""
        super().prepare_create(obj, ctx)
        obj["status"] = {"phase": "Pending"}

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check access modes and size."""
        spec = obj["spec"]
        errors: list[FieldError] = []
        if not spec.get("accessModes"):
            text = "at least 1 access mode is required"
            errors.append(required("spec.accessModes", text))
        if "storage" not in (spec.get("resources") or {}).get("requests", {}):
            errors.append(required("spec.resources[storage]"))
        return errors


class LeaseStrategy(BaseStrategy):
    """coordination.k8s.io/v1 Lease. A PUT must have a resourceVersion."""

    type_name = "Lease"

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check duration and transitions."""
        spec = obj["spec"]
        errors: list[FieldError] = []
        duration = spec.get("leaseDurationSeconds")
        if duration is not None and duration <= 0:
            errors.append(wrong("spec.leaseDurationSeconds", duration, "must be greater than 0"))
        return errors + not_negative("spec.leaseTransitions", spec.get("leaseTransitions"))

    def allows_unconditional_update(self) -> bool:
        """Return False, because leader election must not overwrite another holder."""
        return False


SYSTEM_PRIORITIES = {
    "system-cluster-critical": (
        2_000_000_000,
        (
            "Used for system critical pods that must run in the cluster, but can be moved to "
            "another node if necessary."
        ),
    ),
    "system-node-critical": (
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
}
_USER_PRIORITY_MAX = 1_000_000_000


class PriorityClassStrategy(BaseStrategy):
    """scheduling.k8s.io/v1 PriorityClass."""

    type_name = "PriorityClass"
    is_namespaced = False
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Default to preempting lower priorities."""
        obj.setdefault("preemptionPolicy", "PreemptLowerPriority")

    def generation_relevant(self, obj: Obj) -> Any:
        """Return None: no change affects the generation."""
        return None

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse system names and values above the maximum, which are reserved."""
        name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
        if name.startswith("system-"):
            if SYSTEM_PRIORITIES.get(name, (None,))[0] == value:
                return []
            text = (
                "priority class names with 'system-' prefix are reserved for system use only. "
                f"error: {name} is not a known system priority class"
            )
            return [not_allowed("metadata.name", text)]
        if value > _USER_PRIORITY_MAX:
            text = f"maximum allowed value of a user defined priority is {_USER_PRIORITY_MAX}"
            return [not_allowed("value", text)]
        return []

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse changes of value and preemption policy."""
        errors: list[FieldError] = []
        if new.get("value") != old.get("value"):
            errors.append(not_allowed("value", "may not be changed in an update."))
        if new.get("preemptionPolicy") != old.get("preemptionPolicy"):
            errors.append(immutable("preemptionPolicy", new.get("preemptionPolicy")))
        return errors


class BudgetStrategy(BaseStrategy):
    """policy/v1 PodDisruptionBudget."""

    type_name = "PodDisruptionBudget"
    has_status = True
    has_generation = True

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Allow at most one of the two limits."""
        spec = obj["spec"]
        if "minAvailable" in spec and "maxUnavailable" in spec:
            text = "minAvailable and maxUnavailable cannot be both set"
            return [wrong("spec", spec, text)]
        return []
