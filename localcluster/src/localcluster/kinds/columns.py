"""Table columns of built-in kinds (``pkg/printers/internalversion``), for ``kubectl get``.

Cells are computed from the object alone, except ages, which depend on the present time.
Descriptions of columns are empty.
"""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections.abc import Callable
from typing import Any

from localcluster.kinds.registry import Column
from localcluster.obj import Obj

_NONE = "<none>"


def seconds_of(text: str) -> float:
    """Return an RFC 3339 time as seconds since 1970."""
    return timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S"))


def human_duration(seconds: float) -> str:
    """Return ``duration.HumanDuration``: 90s, 5m30s, 2h, 3d4h ..."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    total = max(total, 0)
    minutes, hours, days = total // 60, total // 3600, total // 86400
    years = days // 365
    if total < 120:
        return f"{total}s"
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    if years < 8:
        return f"{years}y{days % 365}d" if days % 365 else f"{years}y"
    return f"{years}y"


def since(text: str | None, missing: str = "<unknown>") -> str:
    """Return the age of a timestamp."""
    return human_duration(time.time() - seconds_of(text)) if text else missing


def _name(obj: Obj) -> str:
    return str(obj["metadata"].get("name", ""))


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def _status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def _is_condition_true(obj: Obj, kind: str) -> bool:
    return any(
        c.get("type") == kind and c.get("status") == "True"
        for c in _status(obj).get("conditions") or ()
    )


def _of_containers(field: str) -> Callable[[Obj], str]:
    def value(obj: Obj) -> str:
        template = obj.get("template") or _spec(obj).get("template") or {}
        containers = (template.get("spec") or {}).get("containers") or ()
        return ",".join(one.get(field, "") for one in containers)

    return value


def _pod_labels(obj: Obj) -> str:
    metadata = (obj.get("template") or {}).get("metadata") or {}
    return format_selector({"matchLabels": metadata.get("labels") or {}})


def format_selector(selector: Obj | None) -> str:
    """Return ``a=b,c in (d,e)``, as ``metav1.FormatLabelSelector``."""
    if not selector:
        return _NONE
    parts = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or ():
        key, values = rule.get("key", ""), ",".join(sorted(rule.get("values") or ()))
        operator = rule.get("operator")
        if operator in ("In", "NotIn"):
            word = "in" if operator == "In" else "notin"
            parts.append(f"{key} {word} ({values})")
        else:
            parts.append(key if operator == "Exists" else f"!{key}")
    return ",".join(parts) or _NONE


def _pod_status(obj: Obj) -> str:
    status, meta = _status(obj), obj["metadata"]
    reason = status.get("reason") or status.get("phase") or "Unknown"
    if any(
        c.get("type") == "PodScheduled" and c.get("reason") == "SchedulingGated"
        for c in status.get("conditions") or ()
    ):
        reason = "SchedulingGated"
    has_running = False
    for container in reversed(status.get("containerStatuses") or ()):
        state = container.get("state") or {}
        if (state.get("waiting") or {}).get("reason"):
            reason = state["waiting"]["reason"]
        elif "terminated" in state:
            reason = _terminated_reason(state["terminated"])
        elif container.get("ready") and "running" in state:
            has_running = True
    if reason == "Completed" and has_running:
        reason = "Running" if _is_condition_true(obj, "Ready") else "NotReady"
    if meta.get("deletionTimestamp") and status.get("phase") not in ("Failed", "Succeeded"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(reason)


def _terminated_reason(terminated: Obj) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _pod_ready(obj: Obj) -> str:
    total = len(_spec(obj).get("containers") or ())
    ready = sum(
        1
        for c in _status(obj).get("containerStatuses") or ()
        if c.get("ready") and "running" in (c.get("state") or {})
    )
    return f"{ready}/{total}"


def _pod_restarts(obj: Obj) -> str:
    restarts, last = 0, ""
    for container in _status(obj).get("containerStatuses") or ():
        restarts += container.get("restartCount", 0)
        ended = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        last = max(last, ended or "")
    if restarts and last:
        return f"{restarts} ({since(last)} ago)"
    return str(restarts)


def _pod_gates(obj: Obj) -> str:
    gates = _spec(obj).get("readinessGates") or ()
    if not gates:
        return _NONE
    true = sum(1 for g in gates if _is_condition_true(obj, g.get("conditionType", "")))
    return f"{true}/{len(gates)}"


def _job_status(obj: Obj) -> str:
    for kind in ("Complete", "Failed"):
        if _is_condition_true(obj, kind):
            return kind
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for kind in ("Suspended", "FailureTarget", "SuccessCriteriaMet"):
        if _is_condition_true(obj, kind):
            return kind
    return "Running"


def _job_completions(obj: Obj) -> str:
    succeeded = _status(obj).get("succeeded", 0)
    spec = _spec(obj)
    if spec.get("completions") is not None:
        return f"{succeeded}/{spec['completions']}"
    parallelism = spec.get("parallelism", 0)
    return f"{succeeded}/1 of {parallelism}" if parallelism > 1 else f"{succeeded}/1"


def _job_duration(obj: Obj) -> str:
    status = _status(obj)
    if not status.get("startTime"):
        return ""
    started = seconds_of(status["startTime"])
    ended = status.get("completionTime")
    return human_duration((seconds_of(ended) if ended else time.time()) - started)


def _node_status(obj: Obj) -> str:
    words = [
        "Ready" if c.get("status") == "True" else "NotReady"
        for c in _status(obj).get("conditions") or ()
        if c.get("type") == "Ready"
    ] or ["Unknown"]
    if _spec(obj).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _node_roles(obj: Obj) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = obj["metadata"].get("labels") or {}
    return ",".join(sorted(k[len(prefix) :] for k in labels if k.startswith(prefix))) or _NONE


def _node_address(kind: str) -> Callable[[Obj], str]:
    def value(obj: Obj) -> str:
        for address in _status(obj).get("addresses") or ():
            if address.get("type") == kind:
                return str(address.get("address", ""))
        return _NONE

    return value


def _kernel(obj: Obj) -> str:
    info = _status(obj).get("nodeInfo") or {}
    version, architecture = info.get("kernelVersion"), info.get("architecture")
    if not version:
        return "<unknown>"
    return f"{version} ({architecture})" if architecture else str(version)


def _event_last_seen(obj: Obj) -> str:
    series = obj.get("series")
    if series:
        return since(series.get("lastObservedTime"))
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    return since(obj.get("lastTimestamp") or first)


def _event_first_seen(obj: Obj) -> str:
    return since(obj.get("firstTimestamp") or obj.get("eventTime"))


def _event_object(obj: Obj) -> str:
    involved = obj.get("involvedObject") or {}
    kind = involved.get("kind", "").lower()
    return f"{kind}/{involved.get('name', '')}" if involved.get("name") else kind


def _event_source(obj: Obj) -> str:
    source = obj.get("source") or {}
    component = source.get("component") or obj.get("reportingComponent") or ""
    host = source.get("host") or obj.get("reportingInstance") or ""
    return f"{component}, {host}" if host else component


def _event_count(obj: Obj) -> int:
    series = obj.get("series")
    return int(series.get("count", 0)) if series else int(obj.get("count") or 1)


def _role_of(obj: Obj) -> str:
    role = obj.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _ready_of(obj: Obj) -> str:
    return f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}"


_COMPUTED: dict[str, Callable[[Obj], Any]] = {
    "age": lambda obj: since(obj["metadata"].get("creationTimestamp")),
    "containers": _of_containers("name"),
    "images": _of_containers("image"),
    "selector": lambda obj: format_selector(_spec(obj).get("selector")),
    "pod-ready": _pod_ready,
    "pod-status": _pod_status,
    "pod-restarts": _pod_restarts,
    "pod-gates": _pod_gates,
    "pod-labels": _pod_labels,
    "job-status": _job_status,
    "job-completions": _job_completions,
    "job-duration": _job_duration,
    "node-status": _node_status,
    "node-roles": _node_roles,
    "node-internal": _node_address("InternalIP"),
    "node-external": _node_address("ExternalIP"),
    "node-kernel": _kernel,
    "event-last": _event_last_seen,
    "event-first": _event_first_seen,
    "event-object": _event_object,
    "event-source": _event_source,
    "event-count": _event_count,
    "event-message": lambda obj: str(obj.get("message", "")).strip(),
    "ready": _ready_of,
    "data": lambda obj: len(obj.get("data") or ()) + len(obj.get("binaryData") or ()),
    "webhooks": lambda obj: len(obj.get("webhooks") or ()),
    "validations": lambda obj: len(_spec(obj).get("validations") or ()),
    "unset": lambda _obj: "<unset>",
    "role": _role_of,
}
_TEMPLATE = "Containers* containers; Images* images"
_NAME_AND_CREATED = "Name; Created At:date .metadata.creationTimestamp"
_TABLES = {
    "pods": "Name; Ready pod-ready; Status pod-status; Restarts pod-restarts; Age; "
    "IP* .status.podIP|<none>; Node* .spec.nodeName|<none>; "
    "Nominated Node* .status.nominatedNodeName|<none>; Readiness Gates* pod-gates",
    "jobs": "Name; Status job-status; Completions job-completions; Duration job-duration; Age; "
    f"{_TEMPLATE}; Selector* selector",
    "nodes": "Name; Status node-status; Roles node-roles; Age; "
    "Version .status.nodeInfo.kubeletVersion|; Internal-IP* node-internal; "
    "External-IP* node-external; OS-Image* .status.nodeInfo.osImage|<unknown>; "
    "Kernel-Version* node-kernel; "
    "Container-Runtime* .status.nodeInfo.containerRuntimeVersion|<unknown>",
    "events": "Last Seen event-last; Type .type|; Reason .reason|; Object event-object; "
    "Subobject* .involvedObject.fieldPath|; Source* event-source; Message event-message; "
    "First Seen* event-first; Count* event-count; Name*",
    "namespaces": "Name; Status .status.phase|; Age",
    "deployments": "Name; Ready ready; Up-to-date .status.updatedReplicas|0; "
    f"Available .status.availableReplicas|0; Age; {_TEMPLATE}; Selector* selector",
    "replicasets": "Name; Desired:integer .spec.replicas|0; Current:integer .status.replicas|0; "
    f"Ready:integer .status.readyReplicas|0; Age; {_TEMPLATE}; Selector* selector",
    "statefulsets": f"Name; Ready ready; Age; {_TEMPLATE}",
    "daemonsets": "Name; Desired:integer .status.desiredNumberScheduled|0; "
    "Current:integer .status.currentNumberScheduled|0; Ready:integer .status.numberReady|0; "
    "Up-to-date:integer .status.updatedNumberScheduled|0; "
    f"Available:integer .status.numberAvailable|0; Age; {_TEMPLATE}; Selector* selector",
    "podtemplates": "Name; Containers containers; Images images; Pod Labels pod-labels",
    "configmaps": "Name; Data data; Age",
    "secrets": "Name; Type .type|; Data data; Age",
    "services": "Name; Type .spec.type|; Cluster-IP .spec.clusterIP|<none>; Age",
    "persistentvolumeclaims": "Name; Status .status.phase|; Age",
    "leases": "Name; Holder .spec.holderIdentity|; Age",
    "priorityclasses": "Name; Value:integer .value|0; Global-Default:boolean .globalDefault|false; "
    "Age; PreemptionPolicy .preemptionPolicy|",
    "mutatingwebhookconfigurations": "Name; Webhooks:integer webhooks; Age",
    "validatingwebhookconfigurations": "Name; Webhooks:integer webhooks; Age",
    "validatingadmissionpolicies": "Name; Validations:integer validations; ParamKind unset; Age",
    "validatingadmissionpolicybindings": "Name; PolicyName .spec.policyName|; ParamRef unset; Age",
    "rolebindings": "Name; Role role; Age",
    "clusterrolebindings": "Name; Role role; Age",
    "poddisruptionbudgets": "Name; Min Available .spec.minAvailable|N/A; "
    "Max Unavailable .spec.maxUnavailable|N/A; "
    "Allowed Disruptions:integer .status.disruptionsAllowed|0; Age",
    "roles": _NAME_AND_CREATED,
    "clusterroles": _NAME_AND_CREATED,
    "limitranges": _NAME_AND_CREATED,
    "customresourcedefinitions": _NAME_AND_CREATED,
}
"""``Title[*][:type] [.path[|default] | computed]``. Only ``-o wide`` shows columns with ``*``."""
_COLUMN = re.compile(r"([^*:.]+?)(\*)?(?::(\w+))?(?: (\.\S+|[a-z-]+))?")
_TYPES: dict[str, Callable[[str], Any]] = {"integer": int, "boolean": "true".__eq__}


def columns_of(plural: str) -> tuple[Column, ...]:
    """Return the columns of a built-in kind."""
    return tuple(map(_column, _TABLES.get(plural, "Name; Age").split("; ")))


def _column(text: str) -> Column:
    found = _COLUMN.fullmatch(text)
    assert found is not None, text
    name, wide, kind, source = found[1], found[2], found[3] or "string", found[4]
    if name == "Name":
        return Column(name, kind, _name, format="name", priority=int(bool(wide)))
    value = _COMPUTED.get(source or name.lower()) or _path(source, kind)
    return Column(name, kind, value, priority=int(bool(wide)))


def _path(source: str, kind: str) -> Callable[[Obj], Any]:
    path, is_given, text = source.partition("|")
    keys, default = path[1:].split("."), _TYPES.get(kind, str)(text) if is_given else None

    def value(obj: Obj) -> Any:
        found: Any = obj
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if found is None:
            return default
        return str(found) if kind == "string" else found

    return value


NAME = _column("Name")
