"""Errors of the HTTP and request layer, in the real server's words.

The general forms (not found, conflict, invalid ...) are in ``types.refusals``. Here are those that
no kind can raise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from localcluster.kinds.registry import ResourceInfo
from localcluster.types.refusals import (
    FieldError,
    StatusError,
    already_exists,
    conflict,
    invalid,
    wrong,
)

OBJECT_MEDIA = "application/json, application/yaml, application/vnd.kubernetes.protobuf"


def unauthorized() -> StatusError:
    """Return 401: no token or a wrong one."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def not_acceptable_path() -> StatusError:
    """Return 404: nothing is served at this path."""
    return StatusError(
        404, "NotFound", "the server could not find the requested resource", details={}
    )


def method_not_allowed() -> StatusError:
    """Return 405: this path does not have the method."""
    return StatusError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        details={},
    )


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


def unsupported_method(info: ResourceInfo, method: str) -> StatusError:
    """Return 405 in the words of the resource: custom resources name the verb."""
    if not info.is_custom or method not in _VERBS:
        return method_not_allowed()
    return StatusError(
        405,
        "MethodNotAllowed",
        f'{_VERBS[method]} is not supported on resources of kind "{info.resource_name}"',
        details={"group": info.group, "kind": info.plural},
    )


def not_acceptable(*, is_plain: bool = False) -> StatusError:
    """Return 406: no form that the client accepts."""
    if is_plain:
        available = OBJECT_MEDIA.replace(
            "protobuf",
            "protobuf, application/json;stream=watch, "
            "application/vnd.kubernetes.protobuf;stream=watch",
        )
        message = f"406: Not Acceptable\n\nAvailable representations: {available}"
        return StatusError(406, "NotAcceptable", message, details={})
    return StatusError(
        406, "NotAcceptable", f"only the following media types are accepted: {OBJECT_MEDIA}"
    )


def wrong_form(info: ResourceInfo, form: str, *, is_list: bool) -> StatusError:
    """Return 406: metadata of one object requested of a list, or the reverse."""
    package = "unstructured" if info.is_custom else info.group.partition(".")[0] or "core"
    kind = "Unstructured" if info.is_custom else info.kind
    what = f"a list (*{package}.{kind}List)" if is_list else f"not a list (*{package}.{kind})"
    return StatusError(
        406, "NotAcceptable", f"you requested {form}, but the requested object is {what}"
    )


def unsupported_body() -> StatusError:
    """Return 415: a body that is neither JSON nor YAML (protobuf is not served)."""
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + OBJECT_MEDIA,
    )


def unsupported_patch(*, is_known: bool, accepted: Iterable[str]) -> StatusError:
    """Return 415 for a PATCH: not a patch type, or a type that this resource does not accept."""
    if not is_known:
        return StatusError(415, "UnsupportedMediaType", "415: Unsupported Media Type", details={})
    listed = ", ".join(accepted)
    return StatusError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + listed,
    )


def invalid_options(kind: str, errors: list[FieldError]) -> StatusError:
    """Return 422 for parameters (``CreateOptions`` ... ``ListOptions``)."""
    return invalid("meta.k8s.io", kind, "", errors)


def modified(info: ResourceInfo, name: str) -> StatusError:
    """Return 409 for a write that was made for an older version."""
    why = (
        "the object has been modified; please apply your changes to the latest version "
        "and try again"
    )
    return conflict(info.group, info.plural, name, why)


def uid_differs(info: ResourceInfo, namespace: str, name: str, given: str, uid: str) -> StatusError:
    """Return 409 for a PUT (or Binding) with another uid, in the storage layer's words."""
    inner = f"{namespace}/{name}" if namespace else name
    why = (
        f"StorageError: invalid object, Code: 4, Key: /registry/{info.plural}/{inner}, "
        f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: "
        f"{given}, UID in object meta: {uid}"
    )
    return conflict(info.group, info.plural, name, why)


def needs_version(info: ResourceInfo, name: str) -> StatusError:
    """Return 422 for a PUT that lacks a required resourceVersion."""
    error = wrong("metadata.resourceVersion", 0, "must be specified for an update")
    return invalid(info.group, info.plural, name, [error])


def exists(info: ResourceInfo, name: str, current: dict[str, Any]) -> StatusError:
    """Return 409 for creating an object that exists (or is still being deleted)."""
    refusal = already_exists(info.group, info.plural, name)
    if current["metadata"].get("deletionTimestamp"):
        return StatusError(
            409,
            "AlreadyExists",
            f"object is being deleted: {refusal.message}",
            details=refusal.details,
        )
    return refusal


def version_too_large(wanted: int, current: int) -> StatusError:
    """Return 504 for a list at a version that does not exist yet."""
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    return StatusError(
        504,
        "Timeout",
        f"Timeout: Too large resource version: {wanted}, current: {current}",
        details=details,
        headers={"Retry-After": "1"},
    )


def expired_list() -> StatusError:
    """Return 410 for a list at a version that is no longer kept."""
    return StatusError(410, "Expired", "The resourceVersion for the provided list is too old.")


def expired_watch(wanted: int, oldest: int) -> StatusError:
    """Return 410 for a watch from a version that is no longer kept."""
    return StatusError(410, "Expired", f"too old resource version: {wanted} ({oldest})")


def success(code: int | None = None, details: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a Status that reports success."""
    status: dict[str, Any] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
    }
    if details is not None:
        status["details"] = details
    if code is not None:
        status["code"] = code
    return status
