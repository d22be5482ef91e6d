"""Make ``values.schema.json`` from the commented ``values.yaml`` and from fluxqueue's settings.

Run it after a change of either: ``python chart/schema.py``. It also writes the table in
docs/reference/settings.md. A test compares both files. It is not part of the packaged chart.

A value has the type of its default. A comment ``# @schema {...}`` above a key adds JSON Schema
keywords. There are two short forms: ``settings: true`` for the settings of the processes, and
``resources: true`` for the resources of a container. An empty map or list must have such a comment.
Every value must have a description (``# -- ...``), so nothing is left open by accident.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from fluxqueue.process.settings import Settings, describe

CHART = Path(__file__).resolve().parent
VALUES, SCHEMA = CHART / "values.yaml", CHART / "values.schema.json"

DOCUMENT = CHART.parent / "docs" / "reference" / "settings.md"
BEGIN, END = "<!-- settings: written by chart/schema.py -->\n", "<!-- end of settings -->\n"

SET_BY_THE_CHART = {
    "DATABASE_URL": "from postgres or externalDatabase",
    "KUBECONFIG": "the pod's own service account is used",
    "FLUXQUEUE_PG_BIN": "belongs to `fluxqueue up`",
    "FLUXQUEUE_NAMESPACE": "is the release's namespace",
    "FLUXQUEUE_OWNER_KINDS": "from ownerKinds",
    "FLUXQUEUE_ALIASES": "from aliases",
    "FLUXQUEUE_QUEUE_NAMES": "from queueNames",
    "FLUXQUEUE_CONTROLLERS": "from gatePolicy.controllers",
    "FLUXQUEUE_SUBMITTER_ACCOUNTS": "from submitter.accounts",
    "FLUXQUEUE_SUBMITTER_ANNOTATION": "from submitter.annotation",
    "FLUXQUEUE_HTTP_PORT": "is the port that probes and services name",
    "FLUXQUEUE_PLACEMENT_KEY_FILE": "from placementKey",
    "FLUXQUEUE_PROTECT_NODES": "from nodePools.protect",
    "FLUXQUEUE_CERT_SECRET": "from certificates.provider",
    "FLUXQUEUE_CERT_SERVICE": "is the chart's Service",
    "FLUXQUEUE_CERT_CONFIGURATION": "is the chart's webhook configuration",
}
"""Settings that are not values: the chart gives them itself, or they mean nothing in a pod."""

_QUANTITY = {
    "oneOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^[0-9.]+([eE][0-9]+|[munkMGTPE]i?)?$"},
    ]
}
_AMOUNTS = {"type": "object", "additionalProperties": _QUANTITY}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


class Undescribed(ValueError):
    """A value without a description, or whose shape its default does not tell."""


def build(text: str) -> dict[str, Any]:
    """Build the schema of the values file ``text``.

    Raises: ``Undescribed`` naming the value.
    """
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    schema = _object(root, text.splitlines(), where="")
    # Helm itself adds this one to the values of a chart that is another's dependency.
    schema["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "fluxqueue", **schema}


def _object(node: yaml.MappingNode, lines: list[str], *, where: str) -> dict[str, Any]:
    properties = {}
    for key, value in node.value:
        name = f"{where}{key.value}"
        properties[key.value] = _value(value, _comments(lines, key.start_mark.line), lines, name)
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _comments(lines: list[str], row: int) -> list[str]:
    """Give the comment lines right above ``row``, without their marks."""
    above = row
    while above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    return [line.strip().removeprefix("#").strip() for line in lines[above:row]]


def _value(node: yaml.Node, comments: list[str], lines: list[str], name: str) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    words: list[str] = []
    for line in comments:
        if line.startswith("@schema "):
            extra |= yaml.safe_load(line.removeprefix("@schema "))
        else:
            words.append(line.removeprefix("-- "))
    default = yaml.SafeLoader("").construct_document(node)
    is_section = isinstance(node, yaml.MappingNode) and bool(node.value) and not extra
    if not is_section and not any(line.startswith("-- ") for line in comments):
        raise Undescribed(f"{name}: say what it means in a comment that begins with --")
    described = {"description": " ".join(words)} if words else {}
    if is_section:
        assert isinstance(node, yaml.MappingNode)
        return {**described, **_object(node, lines, where=f"{name}.")}
    return {**described, **_shape(default, extra, name)}


def _shape(default: Any, extra: dict[str, Any], name: str) -> dict[str, Any]:
    if extra.pop("settings", False):
        return _settings()
    if extra.pop("resources", False):
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {"requests": _AMOUNTS, "limits": _AMOUNTS},
        }
    if isinstance(default, dict):
        if "additionalProperties" not in extra:
            raise Undescribed(f"{name}: say with @schema what may stand in it")
        return {"type": "object", **extra}
    if isinstance(default, list):
        if "items" not in extra:
            raise Undescribed(f"{name}: say with @schema what its items are")
        return {"type": "array", **extra}
    return {"type": _TYPES[type(default)], **extra}


def _settings() -> dict[str, Any]:
    properties = {}
    for one in fields(Settings):
        variable = one.metadata["variable"]
        if variable.name not in SET_BY_THE_CHART:
            properties[variable.name] = {
                "description": variable.help,
                **_setting(type(one.default), variable),
            }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _setting(kind: type, variable: Any) -> dict[str, Any]:
    if variable.choices:
        return {"enum": list(variable.choices)}
    found: dict[str, Any] = {"type": _TYPES[kind]}
    if variable.low is not None:
        found["minimum"] = variable.low
    if variable.high is not None:
        found["maximum"] = variable.high
    return found


def render(text: str) -> str:
    """Give the file's text for the values file ``text``."""
    return json.dumps(build(text), indent=2, ensure_ascii=False) + "\n"


def with_settings(document: str) -> str:
    """Give ``document`` with the present table of settings between its marks."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{BEGIN!r} is missing"
    assert end, f"{END!r} is missing"
    return f"{before}{begin}\n{describe()}\n\n{end}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(with_settings(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    SCHEMA.write_text(render(VALUES.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {SCHEMA.name} and the table in {DOCUMENT.name}", file=sys.stderr)
