"""Structural schemas of CRDs: pruning, defaulting, validation, and the node for apply.

A :class:`StructuralSchema` is built once per served version. Error messages are those of the real
server (``apiextensions-apiserver``, ``kube-openapi/validation``). Pure.
"""

from __future__ import annotations

import base64
import copy
import ipaddress
import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import Any

import orjson

from localcluster.kinds.crd_rules import INT_OR_STRING, MISSING, Rule
from localcluster.kinds.podspec_rules import unsupported
from localcluster.obj import Obj
from localcluster.types.refusals import (
    NOT_SUPPORTED,
    REQUIRED,
    TOO_LONG,
    TOO_MANY,
    TYPE_INVALID,
    FieldError,
    duplicate,
    required,
    wrong,
)
from localcluster.types.schema import ANY, Node

NOT_CHECKED = (
    "some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation"
)
_BLOCKING = frozenset({REQUIRED, NOT_SUPPORTED, TOO_LONG, TOO_MANY, TYPE_INVALID})
_PRESERVE = "x-kubernetes-preserve-unknown-fields"


Heads = tuple[Obj, Obj]
"""apiVersion, kind and name of the new and the old object, for rules at its root."""


def json_type(value: Any) -> str:
    """Return the schema's word for a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


class StructuralSchema:
    """One schema node with its children, ready to process values."""

    def __init__(self, schema: Obj, *, is_root: bool = False) -> None:
        self.schema = schema
        self.type: str = schema.get("type", "")
        self.is_nullable = bool(schema.get("nullable"))
        self.is_int_or_string = bool(schema.get(INT_OR_STRING))
        self.preserves = bool(schema.get(_PRESERVE))
        self.is_embedded = bool(schema.get("x-kubernetes-embedded-resource"))
        self.properties = {k: StructuralSchema(s) for k, s in schema.get("properties", {}).items()}
        items, more = schema.get("items"), schema.get("additionalProperties")
        self.items = StructuralSchema(items) if isinstance(items, dict) else None
        self.additional = StructuralSchema(more) if isinstance(more, dict) else None
        self.allows_any_key = more is True
        self.required: tuple[str, ...] = tuple(schema.get("required") or ())
        self.has_default = "default" in schema
        self.all_of, self.any_of, self.one_of = (
            [StructuralSchema(s) for s in schema.get(key) or ()]
            for key in ("allOf", "anyOf", "oneOf")
        )
        self.is_not = StructuralSchema(schema["not"]) if "not" in schema else None
        self.rules = [
            Rule(rule, schema, is_root=is_root or self.is_embedded)
            for rule in schema.get("x-kubernetes-validations") or ()
        ]
        pattern = schema.get("pattern")
        self.pattern = re.compile(pattern) if pattern else None
        self.list_type: str = schema.get("x-kubernetes-list-type") or "atomic"
        self.keys: tuple[str, ...] = tuple(schema.get("x-kubernetes-list-map-keys") or ())

    # -- pruning and defaults -------------------------------------------------------------------

    def child(self, key: str) -> StructuralSchema | None:
        """Return the schema below a key, or None."""
        return self.properties.get(key) or self.additional

    def prune(self, value: Any, path: str, unknown: list[str]) -> None:
        """Drop fields that are not specified. Their paths are added to ``unknown``."""
        if isinstance(value, dict):
            for key in sorted(value):
                where = f"{path}.{key}" if path else key
                child = self.child(key)
                if child is not None:
                    child.prune(value[key], where, unknown)
                elif self.is_embedded and key in ("apiVersion", "kind", "metadata"):
                    continue
                elif not self.preserves and not self.allows_any_key:
                    unknown.append(where)
                    del value[key]
        elif isinstance(value, list) and self.items is not None:
            for index, item in enumerate(value):
                self.items.prune(item, f"{path}[{index}]", unknown)

    def default(self, value: Any) -> None:
        """Fill in defaults below ``value``. A null that is not allowed counts as unset."""
        if isinstance(value, dict):
            for key, child in self.properties.items():
                if value.get(key, MISSING) is None and not child.is_nullable:
                    del value[key]
                if key not in value and child.has_default:
                    value[key] = copy.deepcopy(child.schema["default"])
                if key in value:
                    child.default(value[key])
            if self.additional is not None:
                for key, item in value.items():
                    if key not in self.properties:
                        self.additional.default(item)
        elif isinstance(value, list) and self.items is not None:
            for item in value:
                self.items.default(item)

    # -- validation ----------------------------------------------------------------------------

    def validate(self, value: Any, old: Any, path: str, heads: Heads) -> list[FieldError]:
        """Return all broken rules. What did not change since ``old`` (MISSING for none) passes."""
        return self._with_rules(list(self._check(value, old, path, path)), value, old, heads)

    def validate_default(self, value: Any, path: str) -> list[FieldError]:
        """Return what is wrong with a default of this schema. Errors name only ``path``."""
        return list(self._check(value, MISSING, path, ""))

    def validate_status(self, value: Any, old: Any, heads: Heads) -> list[FieldError]:
        """Validate on /status: of the fields only the status, but all rules.

        ``value`` and ``old`` are whole objects. Fields are named without "status." there.
        """
        child = self.child("status")
        if child is None or "status" not in value:
            return []
        before = old.get("status", MISSING)
        return self._with_rules(
            list(child._check(value["status"], before, "status", "")), value, old, heads
        )

    def _with_rules(
        self, errors: list[FieldError], value: Any, old: Any, heads: Heads
    ) -> list[FieldError]:
        if any(error.type in _BLOCKING for error in errors):
            return [*errors, wrong("<nil>", None, NOT_CHECKED)]
        before = old if old is MISSING else {**old, **heads[1]}
        return errors + list(self._check_rules({**value, **heads[0]}, before, ""))

    def _check(self, value: Any, old: Any, path: str, name: str) -> Iterator[FieldError]:
        if old is not MISSING and value == old:
            return
        if value is None and self.is_nullable:
            return
        found = list(self._check_type(value, path, name))
        if found:
            yield from found
            return
        yield from self._check_alternatives(value, path, name)
        if isinstance(value, str):
            yield from self._check_text(value, path, name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from self._check_number(value, path, name)
        elif isinstance(value, list):
            yield from self._check_list(value, old, path, name)
        elif isinstance(value, dict):
            yield from self._check_object(value, old, path, name)
        yield from self._check_enum(value, path)

    def _check_alternatives(self, value: Any, path: str, name: str) -> Iterator[FieldError]:
        """Check ``allOf``, ``anyOf``, ``oneOf`` and ``not``, in the words of kube-openapi."""

        def broken(text: str) -> FieldError:
            return wrong("<nil>", "", f'"{name}" must {text}')

        def fits_of(schemas: list[StructuralSchema]) -> list[list[FieldError]]:
            return [list(one._check(value, MISSING, path, name)) for one in schemas]

        if self.any_of and all(found := fits_of(self.any_of)):
            yield broken("validate at least one schema (anyOf)")
            yield from min(found, key=len)
        if self.one_of:
            found = fits_of(self.one_of)
            fitting = sum(not errors for errors in found)
            if not fitting:
                yield broken("validate one and only one schema (oneOf). Found none valid")
                yield from min(found, key=len)
            elif fitting > 1:
                how_many = f"Found {fitting} valid alternatives"
                yield broken(f"validate one and only one schema (oneOf). {how_many}")
        if any(found := fits_of(self.all_of)):
            yield broken("validate all the schemas (allOf)")
            yield from (error for errors in found for error in errors)
        if self.is_not is not None and not fits_of([self.is_not])[0]:
            yield broken("not validate the schema (not)")

    def _check_type(self, value: Any, path: str, name: str) -> Iterator[FieldError]:
        found = json_type(value)
        if self.is_int_or_string:
            if found not in ("integer", "string"):
                yield _type_error(path, name, "integer,string", found)
            return
        wanted = self.type
        if found == "integer" == wanted and not -(2**63) <= value < 2**63:
            value = float(value)
        elif not wanted or found == wanted or (wanted == "number" and found == "integer"):
            return
        if wanted == "integer" and isinstance(value, float):
            if value.is_integer() and abs(value) < 2**63:
                return
            form = self.schema.get("format")
            if form in ("int32", "int64"):
                yield _type_error(path, name, form, "float64")
                text = f"Checked value must be of type integer with format {form} in {name}"
                yield wrong("<nil>", "", text)
                return
            yield _type_error(path, name, wanted, "number")
            text = f"Checked value must be of type integer (default format) in {name}"
            yield wrong("<nil>", "", text)
            return
        yield _type_error(path, name, wanted, found)

    def _check_enum(self, value: Any, path: str) -> Iterator[FieldError]:
        allowed = self.schema.get("enum")
        if allowed is not None and value not in allowed:
            shown = tuple(a if isinstance(a, str) else orjson.dumps(a).decode() for a in allowed)
            yield unsupported(path, value, shown)

    def _check_text(self, value: str, path: str, name: str) -> Iterator[FieldError]:
        longest, shortest = self.schema.get("maxLength"), self.schema.get("minLength")
        if longest is not None and len(value) > longest:
            yield FieldError(TOO_LONG, path, None, f"may not be more than {longest} bytes")
        if shortest is not None and len(value) < shortest:
            text = f"{name} in body should be at least {shortest} chars long"
            yield wrong(path, value, text)
        if self.pattern is not None and not self.pattern.search(value):
            text = f"{name} in body should match '{self.pattern.pattern}'"
            yield wrong(path, value, text)
        form = self.schema.get("format", "")
        if form in _FORMATS and not _FORMATS[form](value):
            text = f'{name} in body must be of type {form}: "{value}"'
            yield FieldError(TYPE_INVALID, path, value, text)

    def _check_number(self, value: float, path: str, name: str) -> Iterator[FieldError]:
        low, high = self.schema.get("minimum"), self.schema.get("maximum")
        below, above = self.schema.get("exclusiveMinimum"), self.schema.get("exclusiveMaximum")
        if low is not None and (value < low or (below and value == low)):
            word = "greater than" if below else "greater than or equal to"
            text = f"{name} in body should be {word} {_plain(low)}"
            yield wrong(path, value, text)
        if high is not None and (value > high or (above and value == high)):
            word = "less than" if above else "less than or equal to"
            text = f"{name} in body should be {word} {_plain(high)}"
            yield wrong(path, value, text)
        factor = self.schema.get("multipleOf")
        if factor and math.fmod(value, factor):
            text = f"{name} in body should be a multiple of {_plain(factor)}"
            yield wrong(path, value, text)
        if self.schema.get("format") == "int32" and not -(2**31) <= value < 2**31:
            text = f"Checked value must be of type integer with format int32 in {name}"
            yield wrong("<nil>", "", text)

    def _check_list(self, value: list[Any], old: Any, path: str, name: str) -> Iterator[FieldError]:
        most, least = self.schema.get("maxItems"), self.schema.get("minItems")
        if most is not None and len(value) > most:
            yield FieldError(TOO_MANY, path, None, f"{len(value)}: must have at most {most} items")
        if least is not None and len(value) < least:
            text = f"{name} in body should have at least {least} items"
            yield wrong(path, len(value), text)
        yield from self._check_duplicates(value, path)
        if self.items is None:
            return
        for index, item in enumerate(value):
            before = self._old_item(old, item)
            at = f"[{index}]"
            yield from self.items._check(item, before, path + at, name + at)

    def _old_item(self, old: Any, item: Any) -> Any:
        if not isinstance(old, list) or self.list_type != "map" or not isinstance(item, dict):
            return MISSING
        wanted = [item.get(k) for k in self.keys]
        for other in old:
            if isinstance(other, dict) and [other.get(k) for k in self.keys] == wanted:
                return other
        return MISSING

    def _check_duplicates(self, value: list[Any], path: str) -> Iterator[FieldError]:
        if self.list_type not in ("map", "set"):
            return
        seen: list[Any] = []
        for index, item in enumerate(value):
            key = item
            if self.list_type == "map":
                if not isinstance(item, dict):
                    continue
                key = {k: item[k] for k in self.keys if k in item}
            if key in seen:
                yield duplicate(f"{path}[{index}]", key)
            seen.append(key)

    def _check_object(self, value: Obj, old: Any, path: str, name: str) -> Iterator[FieldError]:
        for key in (*(("apiVersion", "kind") if self.is_embedded else ()), *self.required):
            if value.get(key) is None and not self._may_be_null(key, value):
                yield required(_join(path, key))
        most, least = self.schema.get("maxProperties"), self.schema.get("minProperties")
        if most is not None and len(value) > most:
            text = f"{len(value)}: must have at most {most} items"
            yield FieldError(TOO_MANY, path, None, text)
        if least is not None and len(value) < least:
            text = f"{name} in body should have at least {least} properties"
            yield wrong(path, len(value), text)
        before = old if isinstance(old, dict) else {}
        for key, item in value.items():
            child = self.child(key)
            if child is None or (item is None and key in self.required and not child.is_nullable):
                continue
            earlier = before.get(key, MISSING)
            yield from child._check(item, earlier, _join(path, key), _join(name, key))

    def _may_be_null(self, key: str, value: Obj) -> bool:
        child = self.child(key)
        return key in value and child is not None and child.is_nullable

    # -- validation rules ------------------------------------------------------------------------

    def _check_rules(self, value: Any, old: Any, path: str) -> Iterator[FieldError]:
        if value is None or (old is not MISSING and value == old):
            return
        for rule in self.rules:
            if (error := rule.run(value, old, path, json_type(value))) is not None:
                yield error
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for key, item in value.items():
                child = self.child(key)
                if child is not None:
                    yield from child._check_rules(item, before.get(key, MISSING), _join(path, key))
        elif isinstance(value, list) and self.items is not None:
            for index, item in enumerate(value):
                yield from self.items._check_rules(
                    item, self._old_item(old, item), f"{path}[{index}]"
                )

    # -- merging ---------------------------------------------------------------------------------

    def node(self, *, is_root: bool = False) -> Node:
        """Return the schema as a node for apply."""
        if self.is_int_or_string:
            return Node("int-or-string")
        if self.type == "array":
            items = self.items.node() if self.items is not None else ANY
            return Node("list", items=items, list_type=self.list_type, list_map_keys=self.keys)
        if self.type == "object":
            return self._object_node()
        if self.type in ("string", "integer", "number", "boolean"):
            return Node(self.type)
        return ANY

    def _object_node(self) -> Node:
        map_type = self.schema.get("x-kubernetes-map-type") or "granular"
        if self.additional is not None:
            return Node("map", items=self.additional.node(), map_type=map_type)
        fields = {key: child.node() for key, child in self.properties.items()}
        return Node("object", map_type=map_type, preserve_unknown=self.preserves, _fields=fields)


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _type_error(path: str, name: str, wanted: str, found: str) -> FieldError:
    text = f'{name} in body must be of type {wanted}: "{found}"'
    return FieldError(TYPE_INVALID, path, found, text)


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _is_date_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return len(text) > 10


_DURATION = re.compile(
    r"[+-]?(\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)((\d+(\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h))*"
    r"|[+-]?0|\d+ *(days?|weeks?|hours?|hrs?|minutes?|mins?|seconds?|secs?|d|w)"
)
_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


def _is_read_by(read: Callable[[str], Any], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "date": lambda text: len(text) == 10 and _is_read_by(datetime.fromisoformat, text),
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "uuid": lambda text: _UUID.fullmatch(text) is not None,
    "ipv4": lambda text: _is_read_by(ipaddress.IPv4Address, text),
    "ipv6": lambda text: _is_read_by(ipaddress.IPv6Address, text),
    "cidr": lambda text: "/" in text and _is_read_by(ipaddress.ip_interface, text),
    "byte": lambda text: _is_read_by(partial(base64.b64decode, validate=True), text),
}
"""Formats of strings that are checked. Other and unknown formats pass."""
