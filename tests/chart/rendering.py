"""The chart as Helm renders it: documents, and the ways to look into them.

Called by the tests beside it. Rendering is Helm's own (its SDK), offline: ``lookup`` finds nothing.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parents[2] / "chart"
RELEASE, NAMESPACE = "fluxqueue", "fluxqueue-system"

Document = dict[str, Any]
DocumentId = tuple[str, str]
"""Kind and name."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


@functools.cache
def _render(values: str, name: str, namespace: str, is_upgrade: bool) -> str:
    files = _chart().render(
        json.loads(values),
        name=name,
        namespace=namespace,
        is_install=not is_upgrade,
        is_upgrade=is_upgrade,
    )
    return json.dumps(files)


def render_files(
    values: Mapping[str, Any] | None = None,
    *,
    name: str = RELEASE,
    namespace: str = NAMESPACE,
    is_upgrade: bool = False,
) -> dict[str, str]:
    """Render to text by template. Raises what Helm raises."""
    text = _render(json.dumps(values or {}, sort_keys=True), name, namespace, is_upgrade)
    files: dict[str, str] = json.loads(text)
    return {path.removeprefix("fluxqueue/templates/"): one for path, one in files.items()}


def render(values: Mapping[str, Any] | None = None, **more: Any) -> list[Document]:
    """Render to documents, hooks and tests included."""
    return [
        document
        for path, text in render_files(values, **more).items()
        if path.endswith(".yaml")
        for document in yaml.load_all(text, Loader=_LOADER)
        if document
    ]


def id_of(document: Document) -> DocumentId:
    """Tell documents apart."""
    return document["kind"], document["metadata"]["name"]


def by_id(documents: list[Document]) -> dict[DocumentId, Document]:
    """Index them. Two of the same kind and name are a mistake of the chart."""
    found = {id_of(document): document for document in documents}
    assert len(found) == len(documents), "two documents of one kind and name"
    return found


def find(kind: str, name: str, values: Mapping[str, Any] | None = None, **more: Any) -> Document:
    """Give one document of the chart."""
    return by_id(render(values, **more))[kind, name]


def pod_specs(documents: list[Document]) -> Iterator[tuple[DocumentId, dict[str, Any]]]:
    """Give each pod spec with the document that holds it."""
    for document in documents:
        if document["kind"] == "Pod":
            yield id_of(document), document["spec"]
        elif document["kind"] in {"Deployment", "StatefulSet", "Job"}:
            yield id_of(document), document["spec"]["template"]["spec"]


def containers(documents: list[Document]) -> Iterator[tuple[DocumentId, dict[str, Any]]]:
    """Give each container, init containers included."""
    for owner, spec in pod_specs(documents):
        for one in (*spec.get("initContainers", ()), *spec["containers"]):
            yield owner, one


def container(kind: str, name: str, values: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Give the first container of one document."""
    document = find(kind, name, values)
    spec = document["spec"] if kind == "Pod" else document["spec"]["template"]["spec"]
    one: dict[str, Any] = spec["containers"][0]
    return one


def environment(one: Mapping[str, Any]) -> dict[str, Any]:
    """Give a container's variables: the value, or what it is taken from."""
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in one.get("env", ())}


def nested(path: str, value: Any) -> dict[str, Any]:
    """Make the values that set one ``path.with.dots``."""
    for part in reversed(path.split(".")):
        value = {part: value}
    result: dict[str, Any] = value
    return result


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: maps join, everything else is replaced."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


def ha_values() -> dict[str, Any]:
    """Give the values file for high availability."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values-ha.yaml").read_text(encoding="utf-8"))
    return values


EVERYTHING: dict[str, Any] = {
    "commonLabels": {"team": "hpc"},
    "imagePullSecrets": [{"name": "registry"}],
    "certificates": {"provider": "cert-manager"},
    "networkPolicy": {"enabled": True},
    "view": {"enabled": True},
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
    },
}
"""Every flag that is off by default."""

EXTERNAL: dict[str, Any] = {
    "postgres": {"enabled": False},
    "externalDatabase": {
        "existingSecret": "queue",
        "host": "db.example.org",
        "sslmode": "verify-full",
        "caKey": "ca.pem",
    },
}
"""A database of the user's, with its CA."""
