"""Validation of pod specs (``pkg/apis/core/validation``), as far as clients meet it.

It covers containers, ports, env, resources, gates, selectors, affinity, tolerations and the names
of volumes. What it does not check (security contexts, details of volume sources) is accepted. Pure.
"""

from __future__ import annotations

from typing import Any

from localcluster.kinds.meta import validate_labels
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.quantity import value_of
from localcluster.types.refusals import (
    NOT_FOUND,
    NOT_SUPPORTED,
    FieldError,
    all_wrong,
    duplicate,
    not_allowed,
    required,
    wrong,
)

_STANDARD_RESOURCES = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})
_DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
_POLICIES = ("Always", "OnFailure", "Never")
_PULL = ("Always", "IfNotPresent", "Never")


def unsupported(path: str, value: Any, supported: tuple[str, ...]) -> FieldError:
    """Return ``Unsupported value: "x": supported values: "a", "b"``."""
    listed = ", ".join(f'"{s}"' for s in supported)
    return FieldError(NOT_SUPPORTED, path, value, f"supported values: {listed}")


def not_negative(path: str, value: Any) -> list[FieldError]:
    """Check that a count is not negative."""
    if value is not None and value < 0:
        return [wrong(path, value, "must be greater than or equal to 0")]
    return []


def validate_template(template: Obj, path: str) -> list[FieldError]:
    """Check labels, annotations and spec of a template."""
    from localcluster.kinds.meta import validate_annotations

    metadata = template.get("metadata") or {}
    errors = validate_labels(metadata.get("labels"), f"{path}.labels")
    errors += validate_annotations(metadata.get("annotations"), f"{path}.annotations")
    return errors + validate_pod_spec(template.get("spec") or {}, f"{path}.spec")


def validate_pod_spec(spec: Obj, path: str) -> list[FieldError]:
    """Return all broken rules of a pod spec."""
    volumes = {v.get("name", "") for v in spec.get("volumes") or ()}
    errors = _validate_volumes(spec, path)
    errors += _validate_containers(spec, volumes, path)
    policy = spec.get("restartPolicy", "")
    if policy not in _POLICIES:
        errors.append(
            unsupported(f"{path}.restartPolicy", policy, _POLICIES)
            if policy
            else required(f"{path}.restartPolicy")
        )
    if spec.get("dnsPolicy") not in _DNS_POLICIES:
        errors.append(unsupported(f"{path}.dnsPolicy", spec.get("dnsPolicy", ""), _DNS_POLICIES))
    errors += validate_labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    errors += _validate_names(spec, path)
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline < 2**31:
        errors.append(
            wrong(
                f"{path}.activeDeadlineSeconds",
                deadline,
                "must be between 1 and 2147483647, inclusive",
            )
        )
    errors += _validate_gates(spec.get("schedulingGates"), f"{path}.schedulingGates")
    errors += _validate_affinity(spec.get("affinity") or {}, f"{path}.affinity")
    errors += validate_tolerations(spec.get("tolerations"), f"{path}.tolerations")
    return errors + _validate_spread(
        spec.get("topologySpreadConstraints"), f"{path}.topologySpreadConstraints"
    )


def _validate_names(spec: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in ("serviceAccountName", "nodeName", "priorityClassName"):
        if spec.get(key):
            errors += all_wrong(f"{path}.{key}", spec[key], names.dns_subdomain(spec[key]))
    for key in ("hostname", "subdomain"):
        if spec.get(key):
            errors += all_wrong(f"{path}.{key}", spec[key], names.dns_label(spec[key]))
    return errors


def _validate_volumes(spec: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, volume in enumerate(spec.get("volumes") or ()):
        name, at = volume.get("name", ""), f"{path}.volumes[{index}].name"
        if not name:
            errors.append(required(at))
            continue
        errors += all_wrong(at, name, names.dns_label(name))
        if name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
        if len(volume) > 2:
            second = sorted(k for k in volume if k != "name")[1]
            errors.append(
                not_allowed(
                    f"{path}.volumes[{index}].{second}", "may not specify more than 1 volume type"
                )
            )
    return errors


def _validate_containers(spec: Obj, volumes: set[str], path: str) -> list[FieldError]:
    if not spec.get("containers"):
        return [required(f"{path}.containers")]
    errors: list[FieldError] = []
    seen: set[str] = set()
    for key in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(key) or ()):
            at = f"{path}.{key}[{index}]"
            errors += _validate_container(container, at, volumes)
            name = container.get("name", "")
            if name and name in seen:
                errors.append(duplicate(f"{at}.name", name))
            seen.add(name)
    return errors


def _validate_container(container: Obj, path: str, volumes: set[str]) -> list[FieldError]:
    name = container.get("name", "")
    errors: list[FieldError] = []
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += all_wrong(f"{path}.name", name, names.dns_label(name))
    image = container.get("image", "")
    if not image:
        errors.append(required(f"{path}.image"))
    elif image != image.strip():
        errors.append(wrong(f"{path}.image", image, "must not have leading or trailing whitespace"))
    if container.get("imagePullPolicy") not in _PULL:
        errors.append(
            unsupported(f"{path}.imagePullPolicy", container.get("imagePullPolicy", ""), _PULL)
        )
    errors += _validate_ports(container.get("ports"), f"{path}.ports")
    errors += _validate_env(container.get("env"), f"{path}.env")
    errors += _validate_mounts(container.get("volumeMounts"), volumes, f"{path}.volumeMounts")
    return errors + validate_resources(container.get("resources") or {}, f"{path}.resources")


def _validate_ports(ports: Any, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, port in enumerate(ports or ()):
        at = f"{path}[{index}]"
        if port.get("name"):
            texts = names.port_name(port["name"])
            errors += all_wrong(f"{at}.name", port["name"], texts)
            if not texts and port["name"] in seen:
                errors.append(duplicate(f"{at}.name", port["name"]))
            seen.add(port["name"])
        number = port.get("containerPort", 0)
        if not number:
            errors.append(required(f"{at}.containerPort"))
        elif not 1 <= number <= 65535:
            errors.append(
                wrong(f"{at}.containerPort", number, "must be between 1 and 65535, inclusive")
            )
        if port.get("protocol") not in ("TCP", "UDP", "SCTP"):
            errors.append(
                unsupported(f"{at}.protocol", port.get("protocol", ""), ("SCTP", "TCP", "UDP"))
            )
    return errors


def _validate_env(env: Any, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, entry in enumerate(env or ()):
        at = f"{path}[{index}]"
        if not entry.get("name"):
            errors.append(required(f"{at}.name"))
        else:
            errors += all_wrong(f"{at}.name", entry["name"], names.env_var_name(entry["name"]))
        if entry.get("valueFrom") and entry.get("value"):
            errors.append(
                wrong(f"{at}.valueFrom", "", "may not be specified when `value` is not empty")
            )
    return errors


def _validate_mounts(mounts: Any, volumes: set[str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, mount in enumerate(mounts or ()):
        at = f"{path}[{index}]"
        name, where = mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(required(f"{at}.name"))
        elif name not in volumes:
            errors.append(FieldError(NOT_FOUND, f"{at}.name", name, ""))
        if not where:
            errors.append(required(f"{at}.mountPath"))
        elif where in seen:
            errors.append(wrong(f"{at}.mountPath", where, "must be unique"))
        seen.add(where)
    return errors


def validate_resources(resources: Obj, path: str) -> list[FieldError]:
    """Check requests and limits.

    They must not be negative. Extended resources must be whole. Requests must be within limits.
    """
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    errors: list[FieldError] = []
    for kind, listed in (("limits", limits), ("requests", requests)):
        for name in sorted(listed):
            errors += _validate_amount(name, listed[name], f"{path}.{kind}[{name}]", path, kind)
    for name in sorted(requests):
        is_extended = _is_extended(name)
        if name in limits:
            request, limit = value_of(requests[name]), value_of(limits[name])
            if is_extended and request != limit:
                text = f"must be equal to {name} limit of {limits[name]}"
                errors.append(wrong(f"{path}.requests", requests[name], text))
            elif request > limit:
                text = f"must be less than or equal to {name} limit of {limits[name]}"
                errors.append(wrong(f"{path}.requests", requests[name], text))
        elif is_extended:
            errors.append(
                required(f"{path}.limits", "Limit must be set for non overcommitable resources")
            )
    return errors


def _is_extended(name: str) -> bool:
    return ("/" in name and not name.startswith("kubernetes.io/")) or name.startswith("hugepages-")


def _validate_amount(name: str, text: str, path: str, parent: str, kind: str) -> list[FieldError]:
    errors = all_wrong(f"{parent}.{kind}", name, names.qualified_name(name))
    is_plain = "/" not in name and not name.startswith("hugepages-")
    if not errors and is_plain and name not in _STANDARD_RESOURCES:
        why = "must be a standard resource type or fully qualified"
        errors.append(wrong(path, name, why))
        why = "must be a standard resource for containers"
        errors.append(wrong(path, name, why))
    value = value_of(text)
    if value < 0:
        errors.append(wrong(path, text, "must be greater than or equal to 0"))
    elif _is_extended(name) and value != value.to_integral_value():
        errors.append(wrong(path, text, "must be an integer"))
    return errors


def _validate_gates(gates: Any, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, gate in enumerate(gates or ()):
        name, at = gate.get("name", ""), f"{path}[{index}]"
        errors += all_wrong(at, name, names.qualified_name(name))
        if name in seen:
            errors.append(duplicate(at, name))
        seen.add(name)
    return errors


def _validate_affinity(affinity: Obj, path: str) -> list[FieldError]:
    node = affinity.get("nodeAffinity") or {}
    errors: list[FieldError] = []
    needed = node.get("requiredDuringSchedulingIgnoredDuringExecution")
    at = f"{path}.nodeAffinity"
    if needed is not None:
        terms = needed.get("nodeSelectorTerms")
        here = f"{at}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        if not terms:
            text = "must have at least one node selector term"
            errors.append(required(here, text))
        for index, term in enumerate(terms or ()):
            errors += _validate_node_term(term, f"{here}[{index}]")
    preferred = node.get("preferredDuringSchedulingIgnoredDuringExecution")
    here = f"{at}.preferredDuringSchedulingIgnoredDuringExecution"
    for index, weighted in enumerate(preferred or ()):
        errors += _validate_weight(weighted, f"{here}[{index}]")
        errors += _validate_node_term(
            weighted.get("preference") or {}, f"{here}[{index}].preference"
        )
    for key in ("podAffinity", "podAntiAffinity"):
        errors += _validate_pod_affinity(affinity.get(key) or {}, f"{path}.{key}")
    return errors


def _validate_weight(weighted: Obj, path: str) -> list[FieldError]:
    weight = weighted.get("weight", 0)
    if 1 <= weight <= 100:
        return []
    return [wrong(f"{path}.weight", weight, "must be in the range 1-100")]


def _validate_node_term(term: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, rule in enumerate(term.get("matchExpressions") or ()):
        errors += _validate_expression(rule, f"{path}.matchExpressions[{index}]")
    for index, rule in enumerate(term.get("matchFields") or ()):
        at = f"{path}.matchFields[{index}]"
        if rule.get("operator") not in ("In", "NotIn"):
            errors.append(
                wrong(f"{at}.operator", rule.get("operator"), "not a valid selector operator")
            )
        elif len(rule.get("values") or ()) != 1:
            text = (
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
            errors.append(required(f"{at}.values", text))
        if rule.get("key") != "metadata.name":
            errors.append(wrong(f"{at}.key", rule.get("key"), "not a valid field selector key"))
    return errors


def _validate_expression(rule: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    operator, values = rule.get("operator"), rule.get("values") or ()
    if operator in ("In", "NotIn"):
        if not values:
            text = "must be specified when `operator` is 'In' or 'NotIn'"
            errors.append(required(f"{path}.values", text))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(not_allowed(f"{path}.values", text))
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
            errors.append(required(f"{path}.values", text))
    else:
        errors.append(wrong(f"{path}.operator", operator, "not a valid selector operator"))
    key = rule.get("key", "")
    return errors + all_wrong(f"{path}.key", key, names.qualified_name(key))


def _validate_pod_affinity(affinity: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    for index, term in enumerate(affinity.get(key) or ()):
        errors += _validate_topology(term, f"{path}.{key}[{index}]")
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    for index, weighted in enumerate(affinity.get(key) or ()):
        at = f"{path}.{key}[{index}]"
        errors += _validate_weight(weighted, at)
        errors += _validate_topology(weighted.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")
    return errors


def _validate_topology(term: Obj, path: str) -> list[FieldError]:
    key = term.get("topologyKey", "")
    if not key:
        return [required(f"{path}.topologyKey", "can not be empty")]
    return all_wrong(f"{path}.topologyKey", key, names.qualified_name(key))


def validate_tolerations(tolerations: Any, path: str) -> list[FieldError]:
    """Check keys, operators and effects of tolerations."""
    errors: list[FieldError] = []
    for index, toleration in enumerate(tolerations or ()):
        at = f"{path}[{index}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "")
        if key:
            errors += all_wrong(f"{at}.key", key, names.qualified_name(key))
        elif operator != "Exists":
            text = (
                "operator must be Exists when `key` is empty, which means "
                '"match all values and all keys"'
            )
            errors.append(wrong(f"{at}.operator", operator, text))
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != (
            "NoExecute"
        ):
            text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(wrong(f"{at}.effect", toleration.get("effect", ""), text))
        if operator == "Exists":
            if toleration.get("value"):
                text = "value must be empty when `operator` is 'Exists'"
                errors.append(wrong(f"{at}.operator", toleration["value"], text))
        elif operator not in ("", "Equal"):
            errors.append(unsupported(f"{at}.operator", operator, ("Equal", "Exists")))
        if toleration.get("effect") not in (
            None,
            "",
            "NoSchedule",
            "PreferNoSchedule",
            "NoExecute",
        ):
            errors.append(
                unsupported(
                    f"{at}.effect",
                    toleration["effect"],
                    ("NoSchedule", "PreferNoSchedule", "NoExecute"),
                )
            )
    return errors


def _validate_spread(constraints: Any, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, constraint in enumerate(constraints or ()):
        at = f"{path}[{index}]"
        if constraint.get("maxSkew", 0) <= 0:
            errors.append(
                wrong(f"{at}.maxSkew", constraint.get("maxSkew", 0), "must be greater than zero")
            )
        errors += _validate_topology(constraint, at)
        when = constraint.get("whenUnsatisfiable")
        if when not in ("DoNotSchedule", "ScheduleAnyway"):
            errors.append(
                unsupported(f"{at}.whenUnsatisfiable", when, ("DoNotSchedule", "ScheduleAnyway"))
            )
    return errors
