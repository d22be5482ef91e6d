"""The exception by which the embedded API refuses a request, and its usual forms.

Strategies, admission and the API machinery raise it. ``server`` renders it as a ``v1.Status`` body.
It knows nothing of HTTP servers or the store. Formats follow ``k8s.io/apimachinery/pkg/api/errors``
as recorded from a real server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

OMIT: Any = object()
"""Stands for a value that the message leaves out."""


class FieldError(NamedTuple):
    """One broken rule about one field.

    ``type`` is the cause's reason (``FieldValueRequired`` ...). ``value`` is the refused value
    (``OMIT`` if the message does not show it). ``detail`` is the sentence after it.
    """

    type: str
    field: str
    value: Any
    detail: str

    def message(self) -> str:
        """Return the text of ``field.Error.ErrorBody()``."""
        label = _LABELS.get(self.type, self.type)
        if self.type in _WITHOUT_VALUE or self.value is OMIT:
            head = label
        else:
            head = f"{label}: {format_value(self.value)}"
        return f"{head}: {self.detail}" if self.detail else head


REQUIRED = "FieldValueRequired"
DUPLICATE = "FieldValueDuplicate"
INVALID = "FieldValueInvalid"
NOT_SUPPORTED = "FieldValueNotSupported"
FORBIDDEN = "FieldValueForbidden"
TOO_LONG = "FieldValueTooLong"
TOO_MANY = "FieldValueTooMany"
NOT_FOUND = "FieldValueNotFound"
TYPE_INVALID = "FieldValueTypeInvalid"
INTERNAL = "InternalError"

_LABELS = {
    REQUIRED: "Required value",
    DUPLICATE: "Duplicate value",
    INVALID: "Invalid value",
    NOT_SUPPORTED: "Unsupported value",
    FORBIDDEN: "Forbidden",
    TOO_LONG: "Too long",
    TOO_MANY: "Too many",
    NOT_FOUND: "Not found",
    TYPE_INVALID: "Invalid value",
    INTERNAL: "Internal error",
}
_WITHOUT_VALUE = frozenset({REQUIRED, FORBIDDEN, TOO_LONG, INTERNAL, TOO_MANY})


class Raw(str):
    """A value printed unquoted (Go values that are not strings: types, durations)."""

    __slots__ = ()


def wrong(path: str, value: Any, text: str) -> FieldError:
    """Return ``field.Invalid``."""
    return FieldError(INVALID, path, value, text)


def all_wrong(path: str, value: Any, texts: Iterable[str]) -> list[FieldError]:
    """Return an error for each text of a rule about one value."""
    return [wrong(path, value, text) for text in texts]


def required(path: str, text: str = "") -> FieldError:
    """Return ``field.Required``."""
    return FieldError(REQUIRED, path, None, text)


def not_allowed(path: str, text: str) -> FieldError:
    """Return ``field.Forbidden``."""
    return FieldError(FORBIDDEN, path, None, text)


def duplicate(path: str, value: Any) -> FieldError:
    """Return ``field.Duplicate``."""
    return FieldError(DUPLICATE, path, value, "")


def format_value(value: Any) -> str:
    """Return a value as Go's ``field.Error`` prints it: strings quoted, objects as JSON."""
    import orjson

    if value is None:
        return "null"
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return go_quote(value)
    return orjson.dumps(value).decode()


def sorted_map(value: Any) -> Any:
    """Return a map (labels) as Go prints it. Structs keep the order of their fields."""
    return dict(sorted(value.items())) if isinstance(value, dict) else value


def sorted_selector(selector: Any) -> Any:
    """Return a LabelSelector as Go prints it."""
    if not isinstance(selector, dict):
        return selector
    shown = {k: selector[k] for k in ("matchLabels", "matchExpressions") if k in selector}
    if "matchLabels" in shown:
        shown["matchLabels"] = sorted_map(shown["matchLabels"])
    return shown


def go_quote(text: str) -> str:
    """Quote a text as Go's ``%q`` does, for the characters that occur in object fields."""
    out = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + out.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r") + '"'


class StatusError(Exception):
    """An error with the fields of a ``v1.Status``.

    ``code`` is the HTTP code. ``reason`` is the machine-readable word ("" for none). ``details``
    are the status' details (omitted if None). ``headers`` are extra HTTP headers.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details = dict(details) if details is not None else None
        self.headers = dict(headers or {})
        self.extra = dict(extra or {})
        self.warnings: list[str] = []
        """Texts for ``Warning`` headers of the response."""

    def body(self) -> dict[str, Any]:
        """Return the ``v1.Status`` object (key order of the real server)."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = self.details
        status["code"] = self.code
        status.update(self.extra)
        return status


def qualified(group: str, resource: str) -> str:
    """Return ``jobs.batch``. Core resources have no group (``pods``)."""
    return f"{resource}.{group}" if group else resource


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    if kind:
        details["kind"] = kind
    return details


def not_found(group: str, resource: str, name: str) -> StatusError:
    """Return 404 for an object that does not exist."""
    return StatusError(
        404,
        "NotFound",
        f'{qualified(group, resource)} "{name}" not found',
        details=_details(group, resource, name),
    )


def already_exists(group: str, resource: str, name: str) -> StatusError:
    """Return 409 for creating an object that exists."""
    return StatusError(
        409,
        "AlreadyExists",
        f'{qualified(group, resource)} "{name}" already exists',
        details=_details(group, resource, name),
    )


def conflict(group: str, resource: str, name: str, why: str) -> StatusError:
    """Return 409 for a lost race. ``why`` is the sentence after the object."""
    return StatusError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified(group, resource)} "{name}": {why}',
        details=_details(group, resource, name),
    )


def forbidden(group: str, resource: str, name: str, why: str) -> StatusError:
    """Return 403 from admission (``why`` in the plugin's words)."""
    return StatusError(
        403,
        "Forbidden",
        f'{qualified(group, resource)} "{name}" is forbidden: {why}'
        if name
        else f"{qualified(group, resource)} is forbidden: {why}",
        details=_details(group, resource, name),
    )


def bad_request(message: str) -> StatusError:
    """Return 400 for a request that cannot be parsed."""
    return StatusError(400, "BadRequest", message)


def internal_error(message: str) -> StatusError:
    """Return 500 in the words of the real server."""
    return StatusError(
        500,
        "InternalError",
        f"Internal error occurred: {message}",
        details={"causes": [{"message": message}]},
    )


def not_served(what: str) -> StatusError:
    """Return 501: the embedded cluster does not do this and says so."""
    return StatusError(501, "NotImplemented", f"the embedded cluster does not serve {what}")


def invalid(group: str, kind: str, name: str, errors: Iterable[FieldError]) -> StatusError:
    """Return 422 with one cause per broken rule, as ``errors.NewInvalid`` builds it."""
    listed = list(errors)
    texts = list(dict.fromkeys(f"{e.field}: {e.message()}" for e in listed))
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    head = f'{qualified(group, kind)} "{name}" is invalid'
    details = _details(group, kind, name)
    details["causes"] = [
        {"reason": e.type, "message": e.message(), "field": e.field} for e in listed
    ]
    message = f"{head}: {joined}" if listed else head
    return StatusError(422, "Invalid", message, details=details)
