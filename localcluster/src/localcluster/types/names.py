"""Formats of names, labels and keys, with the error messages of the real server.

Rules and texts are from ``k8s.io/apimachinery/pkg/util/validation``. Pure. Results are cached
because the same names come often, so a returned list must never be changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = _LABEL + "(\\." + _LABEL + ")*"
_QUALIFIED = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE = "(" + _QUALIFIED + ")?"
_CONFIG_KEY = "[-._a-zA-Z0-9]+"
_ENV_NAME = re.compile(r"^[^=\x00-\x1f\x7f]+$")

_RE_LABEL = re.compile(f"^{_LABEL}$")
_RE_LABEL_1035 = re.compile(f"^{_LABEL_1035}$")
_RE_SUBDOMAIN = re.compile(f"^{_SUBDOMAIN}$")
_RE_QUALIFIED = re.compile(f"^{_QUALIFIED}$")
_RE_VALUE = re.compile(f"^{_VALUE}$")
_RE_CONFIG_KEY = re.compile(f"^{_CONFIG_KEY}$")


def _remembered(rule: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    return lru_cache(maxsize=4096)(rule)


def _too_long(limit: int, unit: str = "bytes") -> str:
    return f"must be no more than {limit} {unit}"


@_remembered
def dns_subdomain(value: str) -> list[str]:
    """Check an RFC 1123 subdomain of up to 253 bytes."""
    errors = [_too_long(253, "characters")] if len(value) > 253 else []
    if not _RE_SUBDOMAIN.match(value):
        errors.append(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, "
            "'-' or '.', and must start and end with an alphanumeric character "
            f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
        )
    return errors


@_remembered
def dns_label(value: str) -> list[str]:
    """Check an RFC 1123 label of up to 63 bytes."""
    errors = [_too_long(63, "characters")] if len(value) > 63 else []
    if not _RE_LABEL.match(value):
        if _RE_SUBDOMAIN.match(value):
            return [*errors, "must not contain dots"]
        errors.append(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or "
            "'-', and must start and end with an alphanumeric character (e.g. 'my-name',  or "
            f"'123-abc', regex used for validation is '{_LABEL}')"
        )
    return errors


def dns_label_1035(value: str) -> list[str]:
    """Check an RFC 1035 label (service names)."""
    errors = [_too_long(63, "characters")] if len(value) > 63 else []
    if not _RE_LABEL_1035.match(value):
        errors.append(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start "
            "with an alphabetic character, and end with an alphanumeric character (e.g. "
            f"'my-name',  or 'abc-123', regex used for validation is '{_LABEL_1035}')"
        )
    return errors


def path_segment(value: str) -> list[str]:
    """Check a name that only has to fit into a URL path (RBAC)."""
    if value in (".", ".."):
        return [f"may not be '{value}'"]
    return [f"may not contain '{c}'" for c in "/%" if c in value]


@_remembered
def qualified_name(value: str) -> list[str]:
    """Check ``prefix/name`` of labels, annotations, gates, finalizers."""
    parts = value.split("/")
    errors: list[str] = []
    name = parts[-1]
    if len(parts) > 2:
        return [
            (
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and "
                "must "
                "start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
                f"'123-abc', regex used for validation is '{_QUALIFIED}') with an optional DNS "
                "subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )
        ]
    if len(parts) == 2:
        if not parts[0]:
            errors.append("prefix part must be non-empty")
        else:
            # The same rule counts the same characters, but its text says bytes here.
            texts = (
                text.replace("253 characters", "253 bytes") for text in dns_subdomain(parts[0])
            )
            errors += [f"prefix part {text}" for text in texts]
    if not name:
        errors.append("name part must be non-empty")
    elif len(name) > 63:
        errors.append("name part " + _too_long(63))
    if not _RE_QUALIFIED.match(name):
        errors.append(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start "
            "and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or "
            f"'123-abc', regex used for validation is '{_QUALIFIED}')"
        )
    return errors


@_remembered
def label_value(value: str) -> list[str]:
    """Check a label's value."""
    errors = [_too_long(63)] if len(value) > 63 else []
    if not _RE_VALUE.match(value):
        errors.append(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', "
            "'_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue', "
            f" or 'my_value',  or '12345', regex used for validation is '{_VALUE}')"
        )
    return errors


def config_map_key(value: str) -> list[str]:
    """Check a key of a ConfigMap or Secret."""
    errors = [_too_long(253, "characters")] if len(value) > 253 else []
    if not _RE_CONFIG_KEY.match(value):
        errors.append(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. "
            "'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is "
            f"'{_CONFIG_KEY}')"
        )
    return errors


def env_var_name(value: str) -> list[str]:
    """Check an environment variable's name (relaxed rule of 1.34 and later)."""
    if _ENV_NAME.match(value):
        return []
    return [
        (
            "a valid environment variable name must consist only of printable ASCII characters "
            "other than '='"
        )
    ]


def domain_prefixed_path(value: str) -> list[str]:
    """Check a path such as ``acme.io/foo`` (managedBy)."""
    domain, slash, path = value.partition("/")
    if not slash or not domain or not path:
        return ['must be a domain-prefixed path (such as "acme.io/foo")']
    return dns_subdomain(domain)


def port_name(value: str) -> list[str]:
    """Check an IANA service name.

    It has up to 15 letters, digits and single hyphens, and at least one letter.
    """
    errors: list[str] = []
    if len(value) > 15:
        errors.append(_too_long(15, "characters"))
    if not re.fullmatch("[-a-z0-9]+", value):
        errors.append("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)")
    if not re.search("[a-z]", value):
        errors.append("must contain at least one letter (a-z)")
    if "--" in value:
        errors.append("must not contain consecutive hyphens")
    if value.startswith("-") or value.endswith("-"):
        errors.append("must not begin or end with a hyphen")
    return errors
