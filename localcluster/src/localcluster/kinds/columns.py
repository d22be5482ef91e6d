"""Table columns of built-in kinds (``pkg/printers/internalversion``), for ``kubectl get``.

Cells are computed from the object alone, except ages, which depend on the present time.
Descriptions of columns are empty.
"""

from __future__ import annotations

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


def _age(obj: Obj) -> str:
    return since(obj["metadata"].get("creationTimestamp"))


def _name(obj: Obj) -> str:
    return str(obj["metadata"].get("name", ""))


def _spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def _status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def _path(*keys: str, default: Any = None) -> Callable[[Obj], Any]:
    def value(obj: Obj) -> Any:
        found: Any = obj
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return default if found is None else found

    return value


NAME = Column("Name", "string", _name, format="name")
AGE = Column("Age", "string", _age)
CREATED_AT = Column("Created At", "date", _path("metadata", "creationTimestamp"))


def _is_condition_true(obj: Obj, kind: str) -> bool:
    return any(
        c.get("type") == kind and c.get("status") == "True"
        for c in _status(obj).get("conditions") or ()
    )


def _template_containers(obj: Obj) -> list[Obj]:
    template = _spec(obj).get("template") or {}
    return list((template.get("spec") or {}).get("containers") or ())


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


_WIDE_TEMPLATE = (
    Column(
        "Containers",
        "string",
        lambda o: ",".join(c.get("name", "") for c in _template_containers(o)),
        priority=1,
    ),
    Column(
        "Images",
        "string",
        lambda o: ",".join(c.get("image", "") for c in _template_containers(o)),
        priority=1,
    ),
)
_WIDE_SELECTOR = Column(
    "Selector", "string", lambda o: format_selector(_spec(o).get("selector")), priority=1
)


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


PODS = (
    NAME,
    Column("Ready", "string", _pod_ready),
    Column("Status", "string", _pod_status),
    Column("Restarts", "string", _pod_restarts),
    AGE,
    Column("IP", "string", _path("status", "podIP", default=_NONE), priority=1),
    Column("Node", "string", _path("spec", "nodeName", default=_NONE), priority=1),
    Column(
        "Nominated Node", "string", _path("status", "nominatedNodeName", default=_NONE), priority=1
    ),
    Column("Readiness Gates", "string", _pod_gates, priority=1),
)


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


JOBS = (
    NAME,
    Column("Status", "string", _job_status),
    Column("Completions", "string", _job_completions),
    Column("Duration", "string", _job_duration),
    AGE,
    *_WIDE_TEMPLATE,
    _WIDE_SELECTOR,
)


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


def _node_info(key: str) -> Callable[[Obj], str]:
    def value(obj: Obj) -> str:
        return (_status(obj).get("nodeInfo") or {}).get(key) or "<unknown>"

    return value


def _kernel(obj: Obj) -> str:
    info = _status(obj).get("nodeInfo") or {}
    version, architecture = info.get("kernelVersion"), info.get("architecture")
    if not version:
        return "<unknown>"
    return f"{version} ({architecture})" if architecture else str(version)


NODES = (
    NAME,
    Column("Status", "string", _node_status),
    Column("Roles", "string", _node_roles),
    AGE,
    Column("Version", "string", _path("status", "nodeInfo", "kubeletVersion", default="")),
    Column("Internal-IP", "string", _node_address("InternalIP"), priority=1),
    Column("External-IP", "string", _node_address("ExternalIP"), priority=1),
    Column("OS-Image", "string", _node_info("osImage"), priority=1),
    Column("Kernel-Version", "string", _kernel, priority=1),
    Column("Container-Runtime", "string", _node_info("containerRuntimeVersion"), priority=1),
)


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


EVENTS = (
    Column("Last Seen", "string", _event_last_seen),
    Column("Type", "string", _path("type", default="")),
    Column("Reason", "string", _path("reason", default="")),
    Column("Object", "string", _event_object),
    Column("Subobject", "string", _path("involvedObject", "fieldPath", default=""), priority=1),
    Column("Source", "string", _event_source, priority=1),
    Column("Message", "string", lambda o: str(o.get("message", "")).strip()),
    Column("First Seen", "string", _event_first_seen, priority=1),
    Column("Count", "string", _event_count, priority=1),
    Column("Name", "string", _name, format="name", priority=1),
)

NAMESPACES = (NAME, Column("Status", "string", _path("status", "phase", default="")), AGE)


def _ready_of(obj: Obj) -> str:
    return f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 0)}"


DEPLOYMENTS = (
    NAME,
    Column("Ready", "string", _ready_of),
    Column("Up-to-date", "string", lambda o: str(_status(o).get("updatedReplicas", 0))),
    Column("Available", "string", lambda o: str(_status(o).get("availableReplicas", 0))),
    AGE,
    *_WIDE_TEMPLATE,
    _WIDE_SELECTOR,
)
REPLICA_SETS = (
    NAME,
    Column("Desired", "integer", _path("spec", "replicas", default=0)),
    Column("Current", "integer", _path("status", "replicas", default=0)),
    Column("Ready", "integer", _path("status", "readyReplicas", default=0)),
    AGE,
    *_WIDE_TEMPLATE,
    _WIDE_SELECTOR,
)
STATEFUL_SETS = (NAME, Column("Ready", "string", _ready_of), AGE, *_WIDE_TEMPLATE)
DAEMON_SETS = (
    NAME,
    Column("Desired", "integer", _path("status", "desiredNumberScheduled", default=0)),
    Column("Current", "integer", _path("status", "currentNumberScheduled", default=0)),
    Column("Ready", "integer", _path("status", "numberReady", default=0)),
    Column("Up-to-date", "integer", _path("status", "updatedNumberScheduled", default=0)),
    Column("Available", "integer", _path("status", "numberAvailable", default=0)),
    AGE,
    *_WIDE_TEMPLATE,
    _WIDE_SELECTOR,
)
CONFIG_MAPS = (
    NAME,
    Column("Data", "string", lambda o: len(o.get("data") or ()) + len(o.get("binaryData") or ())),
    AGE,
)
SECRETS = (
    NAME,
    Column("Type", "string", _path("type", default="")),
    Column("Data", "string", lambda o: len(o.get("data") or ())),
    AGE,
)
SERVICES = (
    NAME,
    Column("Type", "string", _path("spec", "type", default="")),
    Column("Cluster-IP", "string", _path("spec", "clusterIP", default=_NONE)),
    AGE,
)
CLAIMS = (NAME, Column("Status", "string", _path("status", "phase", default="")), AGE)
LEASES = (NAME, Column("Holder", "string", _path("spec", "holderIdentity", default="")), AGE)
PRIORITY_CLASSES = (
    NAME,
    Column("Value", "integer", _path("value", default=0)),
    Column("Global-Default", "boolean", _path("globalDefault", default=False)),
    AGE,
    Column("PreemptionPolicy", "string", _path("preemptionPolicy", default="")),
)
WEBHOOKS = (NAME, Column("Webhooks", "integer", lambda o: len(o.get("webhooks") or ())), AGE)
POLICIES = (
    NAME,
    Column("Validations", "integer", lambda o: len(_spec(o).get("validations") or ())),
    Column("ParamKind", "string", lambda _o: "<unset>"),
    AGE,
)
POLICY_BINDINGS = (
    NAME,
    Column("PolicyName", "string", lambda o: _spec(o).get("policyName", "")),
    Column("ParamRef", "string", lambda _o: "<unset>"),
    AGE,
)
BINDINGS = (
    NAME,
    Column(
        "Role",
        "string",
        lambda o: f"{o.get('roleRef', {}).get('kind', '')}/{o.get('roleRef', {}).get('name', '')}",
    ),
    AGE,
)
BUDGETS = (
    NAME,
    Column("Min Available", "string", lambda o: str(_spec(o).get("minAvailable", "N/A"))),
    Column("Max Unavailable", "string", lambda o: str(_spec(o).get("maxUnavailable", "N/A"))),
    Column("Allowed Disruptions", "integer", _path("status", "disruptionsAllowed", default=0)),
    AGE,
)
NAME_AND_AGE = (NAME, AGE)
NAME_AND_CREATED = (NAME, CREATED_AT)


def _of_containers(template: Obj, field: str) -> str:
    spec = (template.get("template") or {}).get("spec") or {}
    return ",".join(one.get(field, "") for one in spec.get("containers") or ())


def _pod_labels(template: Obj) -> str:
    metadata = (template.get("template") or {}).get("metadata") or {}
    return format_selector({"matchLabels": metadata.get("labels") or {}})


POD_TEMPLATES = (
    NAME,
    Column("Containers", "string", lambda o: _of_containers(o, "name")),
    Column("Images", "string", lambda o: _of_containers(o, "image")),
    Column("Pod Labels", "string", _pod_labels),
)
