"""The validation rules of a CRD (``x-kubernetes-validations``): types, and running them.

``crd_schema`` runs the rules. ``crd_strategy`` refuses rules that do not compile. A field has the
type of its schema. A field without a type is unknown. Pure.

Source: ``apiserver/pkg/cel/common/schemas.go`` (types), ``apiserver/pkg/cel/escaping.go`` (names).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from localcluster.obj import Obj
from localcluster.types.cel import CelError, CelSyntaxError, Eval, kinds, typed
from localcluster.types.cel.functions import FUNCTIONS
from localcluster.types.cel.kinds import Type
from localcluster.types.cel.syntax import RESERVED
from localcluster.types.cel.values import Optional
from localcluster.types.refusals import INVALID, OMIT, FieldError, wrong

MISSING: Any = object()
INT_OR_STRING = "x-kubernetes-int-or-string"
_HEAD: Obj = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
    },
}
"""What rules at the root of an object may read in addition to its schema."""

_TEXTS = {
    "byte": kinds.BYTES,
    "duration": kinds.DURATION,
    "date": kinds.TIMESTAMP,
    "date-time": kinds.TIMESTAMP,
}
_SIMPLE = {"boolean": kinds.BOOL, "number": kinds.DOUBLE, "integer": kinds.INT}
_LITERALS = frozenset({"true", "false", "null", "in"})
_PARTS = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_PART = re.compile(r"__|[.\-/]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _names(name: str) -> list[str]:
    """Return the names by which a field is selected, or none if it cannot be selected."""
    if name in _LITERALS or name in RESERVED:
        return [f"__{name}__", *([name] if name in RESERVED else [])]
    escaped = _PART.sub(lambda match: _PARTS[match[0]], name)
    return [escaped] if _IDENTIFIER.fullmatch(escaped) else []


def _properties(schema: Obj, *, is_root: bool) -> Obj:
    properties: Obj = schema.get("properties") or {}
    return {**properties, **_HEAD} if is_root else properties


def _is_root(schema: Obj) -> bool:
    return bool(schema.get("x-kubernetes-embedded-resource"))


def type_of(schema: Obj, name: str, *, is_root: bool) -> Type | None:
    """Return the type of values of a schema, or None if it says too little.

    ``name`` is the name of an object type.
    """
    if schema.get(INT_OR_STRING):
        return kinds.DYN
    kind = schema.get("type", "")
    if kind == "string":
        return _TEXTS.get(schema.get("format", ""), kinds.STRING)
    if kind == "array":
        items = schema.get("items")
        item = _child(items, f"{name}.@idx") if isinstance(items, dict) else None
        return item and kinds.list_of(item)
    if kind != "object":
        return _SIMPLE.get(kind)
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        value = _child(more, f"{name}.@elem")
        return value and kinds.map_of(kinds.STRING, value)
    fields = {
        alias: found
        for key, below in _properties(schema, is_root=is_root).items()
        if (found := _child(below, f"{name}.{key}")) is not None
        for alias in _names(key)
    }
    return kinds.object_of(name, fields)


def _child(schema: Obj, name: str) -> Type | None:
    return type_of(schema, name, is_root=_is_root(schema))


# -- values --------------------------------------------------------------------------------------

Reader = Callable[[Any], Any]


def reader_of(schema: Obj, *, is_root: bool) -> Reader | None:
    """Return a function that converts a JSON value to the type of its schema.

    None means that no conversion is needed.
    """
    kind = schema.get("type", "")
    if schema.get(INT_OR_STRING):
        return None
    if kind == "string":
        return _TEXT_READERS.get(schema.get("format", ""))
    if kind in ("number", "integer"):
        return _NUMBER_READERS[kind]
    if kind == "array":
        items = schema.get("items")
        item = _child_reader(items) if isinstance(items, dict) else None
        return item and (lambda value: [item(one) for one in value])
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        inner = _child_reader(more)
        return inner and (lambda value: {key: inner(one) for key, one in value.items()})
    return _object_reader(_properties(schema, is_root=is_root)) if kind == "object" else None


def _child_reader(schema: Obj) -> Reader | None:
    found = reader_of(schema, is_root=_is_root(schema))
    return found and (lambda value: value if value is None else found(value))


def _object_reader(properties: Obj) -> Reader | None:
    readers = {key: _child_reader(below) for key, below in properties.items()}
    names = {key: _names(key) for key in properties}
    nullable = {key for key, below in properties.items() if below.get("nullable")}
    is_plain = all(names[key] == [key] for key in names)
    if is_plain and not nullable and not any(readers.values()):
        return None

    def read(value: Any) -> Any:
        made: Obj = {}
        for key, one in value.items():
            if one is None and key in nullable:
                continue  # has() is false for it
            reader = readers.get(key)
            for name in names.get(key, [key]):
                made[name] = reader(one) if reader else one
        return made

    return read


def _text_reader(name: str) -> Reader:
    run = next(one.run for one in FUNCTIONS[name] if one.takes == (kinds.STRING,))
    assert run is not None
    return run


def _moment(text: str) -> Any:
    return _text_reader("timestamp")(text if len(text) > 10 else f"{text}T00:00:00Z")


_TEXT_READERS: dict[str, Reader] = {
    "byte": base64.b64decode,
    "duration": _text_reader("duration"),
    "date": _moment,
    "date-time": _moment,
}
_NUMBER_READERS: dict[str, Reader] = {
    "number": lambda value: float(value) if isinstance(value, int) else value,
    "integer": lambda value: int(value) if isinstance(value, float) else value,
}


# -- rules ---------------------------------------------------------------------------------------


class RuleTypeError(ValueError):
    """No type can be made from the schema, so rules cannot be compiled."""


def variables_of(schema: Obj, rule: Obj, *, is_root: bool) -> dict[str, Type]:
    """Return the types of ``self`` and ``oldSelf``. Raises RuleTypeError."""
    found = type_of(schema, "selfType", is_root=is_root)
    if found is None:
        raise RuleTypeError("unable to convert structural schema to CEL declarations")
    old = kinds.optional_of(found) if rule.get("optionalOldSelf") else found
    return {"self": found, "oldSelf": old}


def mentions_old(text: str) -> bool:
    """Return whether a rule reads the old value."""
    return re.search(r"\boldSelf\b", text) is not None


class Rule:
    """One ``x-kubernetes-validations`` entry of a schema, compiled."""

    def __init__(self, rule: Obj, schema: Obj, *, is_root: bool) -> None:
        self.text = str(rule.get("rule", ""))
        variables = variables_of(schema, rule, is_root=is_root)
        self._holds: Eval = typed(self.text, variables)[1]
        self._is_optional = bool(rule.get("optionalOldSelf"))
        self._title = rule.get("message") or self.text
        self._message = rule.get("message") or f"failed rule: {self.text}"
        wording = rule.get("messageExpression")
        self._say: Eval | None = typed(wording, variables)[1] if wording else None
        self._field_path: str = rule.get("fieldPath", "")
        self._reason = rule.get("reason") or INVALID
        self._read = reader_of(schema, is_root=is_root) or (lambda value: value)
        self._needs_old = mentions_old(self.text) and not self._is_optional

    def run(self, value: Any, old: Any, path: str, kind: str) -> FieldError | None:
        """Return what is wrong with ``value``. A rule about a change ignores new values."""
        if self._needs_old and old is MISSING:
            return None
        where = f"{path}{self._field_path}" or "<nil>"
        try:
            known = {"self": self._read(value), "oldSelf": self._before(old)}
            holds = self._holds(known)
        except CelError as error:
            text = f"{error} evaluating rule: {self._title}"
            return wrong(where, kind, text)
        if holds is True:
            return None
        shown = OMIT if isinstance(value, dict | list) else value
        return FieldError(self._reason, where, shown, self._wording(known))

    def _before(self, old: Any) -> Any:
        read = None if old is MISSING or old is None else self._read(old)
        if not self._is_optional:
            return read
        return Optional() if old is MISSING else Optional((read,))

    def _wording(self, known: dict[str, Any]) -> str:
        """Return the text of ``messageExpression``.

        If it fails, or gives anything but one line of text, return the message.
        """
        if self._say is None:
            return str(self._message)
        try:
            said = self._say(known)
        except CelError:
            return str(self._message)
        is_line = isinstance(said, str) and bool(said.strip()) and "\n" not in said
        return str(said) if is_line else str(self._message)


_WANTED = (
    ("rule", kinds.BOOL, "cel expression must evaluate to a bool"),
    ("messageExpression", kinds.STRING, "messageExpression must evaluate to a string"),
)


def compile_findings(rule: Obj, variables: dict[str, Type]) -> list[tuple[str, str]]:
    """Return which of an entry's two expressions does not compile, and why."""
    found: list[tuple[str, str]] = []
    for key, kind, refusal in _WANTED:
        text = rule.get(key)
        if not text:
            continue
        try:
            made, _ = typed(text, variables)
        except CelSyntaxError as error:
            head = "" if key == "rule" else f"{key} "
            found.append((key, f"{head}compilation failed: {error}"))
        else:
            if made != kind:
                found.append((key, refusal))
    return found
