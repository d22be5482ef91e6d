"""One API request in its parts (path, verb, options, body), and the answer to it.

``routes`` makes it from an HTTP request, and all handlers read it. It knows the forms of Kubernetes
paths and parameters (``k8s.io/apiserver/pkg/endpoints/request``), but neither the store nor any
kind.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
import yaml

from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.kinds.request_context import UserInfo
from localcluster.obj import Obj
from localcluster.server import protobuf
from localcluster.server.http_refusals import (
    invalid_options,
    not_acceptable_path,
    unsupported_body,
)
from localcluster.server.negotiation import from_yaml, repeated_keys
from localcluster.server.unserved import why_unserved
from localcluster.types.go_json import go_json_error
from localcluster.types.refusals import (
    NOT_SUPPORTED,
    TOO_LONG,
    FieldError,
    Raw,
    StatusError,
    bad_request,
    invalid,
    not_found,
    not_served,
    wrong,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The meaning of a path: a resource, in a namespace, one object, a subresource."""

    info: ResourceInfo
    namespace: str
    name: str
    subresource: str
    is_watch_path: bool = False


@dataclass(slots=True)
class ApiRequest:
    """One request. ``headers`` ignore case. ``query`` returns a key's first value.

    ``acting_as`` is the user that ``user`` asks to impersonate. If allowed, ``gate`` makes it
    ``user``.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: UserInfo
    dry_run: list[str] = field(default_factory=list)
    acting_as: UserInfo | None = None

    @property
    def content_type(self) -> str:
        """The media type of the body without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(slots=True)
class Answer:
    """The answer to a request."""

    code: int
    body: bytes
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """Texts for ``Warning`` headers."""


class Stream(Protocol):
    """An answer that is sent piece by piece: a watch, or a log that is followed."""

    @property
    def content_type(self) -> str:
        """Return the content type of the whole answer."""

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """Return an iterator of the pieces."""


def resolve(registry: Registry, path: str) -> Target | None:
    """Return the target of an ``/api`` or ``/apis`` path, or None for group documents.

    Raises :class:`StatusError` 404 for an unknown resource or subresource, and 501 if only a real
    server has it.
    """
    parts = [p for p in path.split("/") if p]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    is_watch_path = rest[0] == "watch" and len(rest) > 1
    if is_watch_path:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) >= 3 and not _is_namespace_part(group, rest):
        namespace, rest = rest[1], rest[2:]
    info = registry.lookup(group, version, rest[0])
    if info is None or (namespace and not info.namespaced):
        raise _unknown(group, rest[0])
    name = rest[1] if len(rest) > 1 else ""
    subresource = "/".join(rest[2:])
    if name and info.namespaced and not namespace:
        raise not_acceptable_path()
    if subresource and subresource not in info.subresources:
        if info.is_custom:
            raise not_found(info.group, info.plural, name)
        raise _unknown(group, rest[0], subresource)
    return Target(info, namespace, name, subresource, is_watch_path)


def _unknown(group: str, plural: str, subresource: str = "") -> StatusError:
    if what := why_unserved(group, plural, subresource):
        return not_served(what)
    return not_acceptable_path()


def _is_namespace_part(group: str, rest: list[str]) -> bool:
    """Return whether the path is a subresource of the namespace itself.

    An example is ``/api/v1/namespaces/x/status``.
    """
    return group == "" and len(rest) == 3 and rest[2] in ("status", "finalize")


# -- parameters -----------------------------------------------------------------------------


def int_parameter(query: Mapping[str, str], name: str) -> int | None:
    """Return an integer parameter, or None if it is missing or empty. Raise 400 in Go's words."""
    text = query.get(name, "")
    if text == "":
        return None
    try:
        return int(text)
    except ValueError:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None


def bool_parameter(query: Mapping[str, str], name: str) -> bool:
    """Return a flag as the real server reads it: anything but "", 0 and false is true."""
    text = query.get(name)
    return text is not None and text.lower() not in ("0", "false")


def check_dry_run(values: list[str], kind: str) -> bool:
    """Return whether the request is a dry run. Raise 422 for any value but ``All``."""
    if not values:
        return False
    if any(v != "All" for v in values):
        shown = Raw(orjson.dumps(values).decode())
        raise invalid_options(
            kind, [FieldError(NOT_SUPPORTED, "dryRun", shown, 'supported values: "All"')]
        )
    return True


def check_field_validation(query: Mapping[str, str], kind: str) -> str:
    """Return ``fieldValidation``: Strict, Warn (default) or Ignore. Raise 422 otherwise."""
    value = query.get("fieldValidation", "")
    if value in ("", "Ignore", "Strict", "Warn"):
        return value or "Warn"
    detail = 'supported values: "", "Ignore", "Strict", "Warn"'
    raise invalid_options(kind, [FieldError(NOT_SUPPORTED, "fieldValidation", value, detail)])


def field_manager(
    query: Mapping[str, str], headers: Mapping[str, str], options_kind: str = "PatchOptions"
) -> str:
    """Return the field manager: the parameter, or the first word of the user agent."""
    given = query.get("fieldManager", "")
    if len(given) > 128:
        detail = "may not be more than 128 bytes"
        raise invalid_options("PatchOptions", [FieldError(TOO_LONG, "fieldManager", given, detail)])
    for position, letter in enumerate(given):
        if not letter.isprintable():
            detail = f"invalid character U+{ord(letter):04X} (at position {position})"
            error = wrong("fieldManager", given, detail)
            raise invalid_options(options_kind, [error])
    return given or headers.get("user-agent", "").partition("/")[0][:128] or "unknown"


# -- bodies ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Body:
    """A decoded body. ``duplicates`` has the repeated keys: ``duplicate field "spec.x"``."""

    value: Any
    duplicates: list[str] = field(default_factory=list)


def decode_object(request: ApiRequest, kind: str) -> Body:
    """Return the object in a POST or PUT body, JSON or YAML.

    Raises :class:`StatusError` 415 for other media types and 400 for what cannot be parsed.
    """
    content_type = request.content_type
    if content_type in ("application/json", "", "*/*"):
        body = parse_json(request.body, kind)
    elif content_type in ("application/yaml", "application/x-yaml", "text/yaml"):
        body = Body(_parse_yaml(request.body, kind), repeated_keys(request.body))
    elif content_type == protobuf.MEDIA_TYPE:
        body = Body(protobuf.decode_body(request.body))
    else:
        raise unsupported_body()
    if body.value is None:
        body.value = {}
    if not isinstance(body.value, dict):
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get "
            "version/kind; json parse error: json: cannot unmarshal "
            f"{_go_kind(body.value)} into Go value of type struct {{ APIVersion string "
            '"json:\\"apiVersion,omitempty\\""; Kind string "json:\\"kind,omitempty\\"" }'
            f" ({_head(request.body)})"
        )
    return body


def _go_kind(value: Any) -> str:
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "bool" if isinstance(value, bool) else "number"


def parse_json(raw: bytes, kind: str) -> Body:
    """Return JSON with its repeated keys. Raise 400 in Go's words for common mistakes."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "depth" in str(error):
            raise _too_deep(kind) from None
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): couldn't get "
            f"version/kind; json parse error: {go_json_error(raw)} ({_head(raw)})"
        ) from None
    # A compact body of the same length cannot have lost a key. Other bodies are parsed again by a
    # slower parser.
    try:
        is_whole = len(orjson.dumps(value)) == len(raw)
    except TypeError:  # Kubernetes accepts 10,000 levels, this writer 254
        raise _too_deep(kind) from None
    if is_whole:
        return Body(value)
    return Body(value, [f'duplicate field "{path}"' for path in find_duplicates(raw)])


def _too_deep(kind: str) -> StatusError:
    return bad_request(
        f"the object provided is unrecognized (must be of type {kind}): exceeded max depth"
    )


def find_duplicates(raw: bytes) -> list[str]:
    """Return paths of keys that occur twice in one object (``spec.x``), in order."""
    found: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> Any:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                found.append(key)
            seen.add(key)
        return _Pairs(pairs)

    root = json.loads(raw, object_pairs_hook=collect)
    if not found:
        return []
    paths: list[str] = []
    _duplicate_paths(root, "", paths)
    return paths


class _Pairs(list[tuple[str, Any]]):
    """An object as its pairs, so that repeated keys are not lost."""


def _duplicate_paths(value: Any, prefix: str, paths: list[str]) -> None:
    if isinstance(value, _Pairs):
        seen: set[str] = set()
        for key, inner in value:
            path = f"{prefix}.{key}" if prefix else key
            if key in seen and path not in paths:
                paths.append(path)
            seen.add(key)
            _duplicate_paths(inner, path, paths)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _duplicate_paths(inner, f"{prefix}[{index}]", paths)


def _head(raw: bytes) -> str:
    return raw[:128].decode("utf-8", "replace") if raw else "<empty>"


def _parse_yaml(raw: bytes, kind: str) -> Any:
    try:
        return from_yaml(raw)
    except yaml.YAMLError as error:
        raise bad_request(
            f"the object provided is unrecognized (must be of type {kind}): "
            f"yaml: {error} ({_head(raw)})"
        ) from error


def check_type(obj: Obj, info: ResourceInfo, registry: Registry, subresource: str = "") -> None:
    """Check that apiVersion and kind of a body fit the path. They may be missing."""
    kind, api_version = _wanted_type(info, subresource)
    given_kind, given_version = obj.get("kind") or "", obj.get("apiVersion") or ""
    if info.is_custom and not subresource:
        _check_custom_type(given_kind, given_version, api_version)
        if given_kind != kind:
            name = str((obj.get("metadata") or {}).get("name") or "")
            error = wrong("kind", given_kind, f"must be {kind}")
            raise invalid(info.group, given_kind, name, [error])
    given = (given_kind or kind, given_version or api_version)
    if given != (kind, api_version):
        raise _wrong_type(*given, kind, registry)
    obj["kind"], obj["apiVersion"] = kind, api_version


def _wanted_type(info: ResourceInfo, subresource: str) -> tuple[str, str]:
    sub = info.subresources.get(subresource)
    if sub is None or sub.how in ("status", "update"):
        return info.kind, info.api_version
    if not sub.version:
        return sub.kind, info.api_version
    return sub.kind, f"{sub.group}/{sub.version}" if sub.group else sub.version


def _check_custom_type(kind: str, version: str, wanted_version: str) -> None:
    if not kind:
        raise bad_request("Object 'Kind' is missing in '...'")
    if version and version != wanted_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version "
            f"({wanted_version})"
        )


def _wrong_type(kind: str, api_version: str, wanted: str, registry: Registry) -> StatusError:
    group, _, version = api_version.rpartition("/")
    if registry.by_kind(group, kind, version) is not None:
        why = f"converting ({version}.{kind}) to (core.{wanted}): unknown conversion"
    else:
        why = (
            f'no kind "{kind}" is registered for version "{api_version}" in scheme '
            '"pkg/api/legacyscheme/scheme.go:30"'
        )
    return bad_request(f'{kind} in version "{version}" cannot be handled as a {wanted}: {why}')
