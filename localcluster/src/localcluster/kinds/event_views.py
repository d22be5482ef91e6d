"""Events in both APIs: core/v1 is stored, and events.k8s.io/v1 is a view of it.

Validation follows ``pkg/apis/core/validation/events.go``. Pure.
"""

from __future__ import annotations

from localcluster.kinds.meta import immutable
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.refusals import FieldError, all_wrong, required, wrong

# events.k8s.io field -> core field
_RENAMED = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_BACK = {core: new for new, core in _RENAMED.items()}
_IMMUTABLE = (
    "regarding",
    "reason",
    "note",
    "deprecatedSource",
    "deprecatedFirstTimestamp",
    "deprecatedLastTimestamp",
    "deprecatedCount",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingController",
    "reportingInstance",
)
_DROPPED_WHEN_EMPTY = ("note", "reportingController", "reportingInstance")


def to_core(obj: Obj) -> Obj:
    """Return an events.k8s.io/v1 Event in its stored form."""
    core = {_RENAMED.get(key, key): value for key, value in obj.items()}
    core["apiVersion"] = "v1"
    core.setdefault("reportingComponent", "")
    core.setdefault("reportingInstance", "")
    return core


def from_core(obj: Obj) -> Obj:
    """Return a stored event as an events.k8s.io/v1 Event."""
    view = {_BACK.get(key, key): value for key, value in obj.items()}
    view["apiVersion"] = "events.k8s.io/v1"
    for key in _DROPPED_WHEN_EMPTY:
        if not view.get(key):
            view.pop(key, None)
    return view


def _required(obj: Obj, keys: tuple[str, ...]) -> list[FieldError]:
    return [required(key) for key in keys if not obj.get(key)]


def _validate_namespace(obj: Obj, involved: Obj) -> list[FieldError]:
    namespace, wanted = obj["metadata"].get("namespace", ""), involved.get("namespace", "")
    if not wanted:
        if namespace not in ("default", "kube-system"):
            text = "does not match event.namespace"
            return [wrong("involvedObject.namespace", wanted, text)]
    elif namespace != wanted:
        text = "does not match event.namespace"
        return [wrong("involvedObject.namespace", wanted, text)]
    return []


class EventStrategy(BaseStrategy):
    """core/v1 Event."""

    type_name = "Event"

    def validate_create(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the namespace, and more for new-style events (with eventTime)."""
        errors = super().validate_create(obj, ctx)
        errors = _validate_namespace(obj, obj.get("involvedObject") or {}) + errors
        if obj.get("eventTime"):
            errors += _required(obj, ("reportingComponent", "reportingInstance", "action"))
        return errors


class EventsEventStrategy(BaseStrategy):
    """events.k8s.io/v1 Event, for requests of that version."""

    type_name = "EventsEvent"

    def validate_create(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check eventTime, reporter, action, reason, type and note."""
        errors = super().validate_create(obj, ctx)
        errors += _required(obj, ("eventTime",))
        controller = obj.get("reportingController", "")
        errors += _required(obj, ("reportingController",))
        errors += all_wrong("reportingController", controller, names.qualified_name(controller))
        errors += _required(obj, ("reportingInstance", "action", "reason"))
        if obj.get("type") not in ("Normal", "Warning"):
            kind = obj.get("type", "")
            errors.append(wrong("type", "", f"has invalid value: {kind}"))
        if len(obj.get("note", "")) > 1024:
            errors.append(wrong("message", "", "can have at most 1024 characters"))
        return errors + _validate_namespace(obj, obj.get("regarding") or {})

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse changes except of series and metadata."""
        shown = {**_RENAMED, "note": "message", "regarding": "involvedObject"}
        return [
            immutable(shown.get(key, key), new.get(key))
            for key in _IMMUTABLE
            if new.get(key) != old.get(key)
        ]
