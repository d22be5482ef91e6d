"""Writes ``src/localcluster/types/table.txt`` from the OpenAPI of the supported Kubernetes version.

    python tools/make_types.py            (`make table` of the repository)

The schemas are those of the development dependency ``kubernetes-validate``, a copy of Kubernetes'
own with its extensions; ``overlay.txt`` beside the table says what they do not. A test makes the
table anew and compares.
"""

from __future__ import annotations

import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = "1.36"
FOLDER = Path(__file__).resolve().parents[1] / "src" / "localcluster" / "types"
HEADER = f"""\
# Field names and types of the built-in kinds, Kubernetes {VERSION} (read by table.py).
# Written by tools/make_types.py; what is to be changed by hand stands in overlay.txt.
#
#   TypeName [atomic]          one type; its fields follow, indented
#     field [*]type [marks]    "*": an explicit zero is kept (a pointer in Go)
#
# types: string int32 int64 float64 bool quantity time microtime bytes int-or-string any, a type
#   name, []T, map:T
# marks: required   for OpenAPI          always   written even when empty (no omitempty)
#        merge=KEY  strategic merge key  merge    scalars that are merged   retainKeys
#        keys=A,B   list-map keys of server-side apply   set   a list that is a set
#        atomic     replaced as a whole by server-side apply
"""

Schema = dict[str, Any]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_SCHEMAS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1"
_OF_THEIR_OWN = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    f"{_META}.Time": "time",
    f"{_META}.MicroTime": "microtime",
    # Either a schema or a list of them; lists are no structural schemas.
    f"{_SCHEMAS}.JSONSchemaPropsOrArray": "JSONSchemaProps",
}
"""Types whose JSON is no object."""


@dataclass(slots=True)
class Overlay:
    """``overlay.txt``, read."""

    names: dict[str, str] = field(default_factory=dict)
    """Full name in OpenAPI to ours."""
    roots: list[str] = field(default_factory=list)
    pointers: set[tuple[str, str]] = field(default_factory=set)
    always: set[tuple[str, str]] = field(default_factory=set)


def read_overlay() -> Overlay:
    """The overlay that stands beside the table."""
    overlay, current = Overlay(), ""
    for line in (FOLDER / "overlay.txt").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if line.startswith("  "):
            marked = {"pointer": overlay.pointers, "always": overlay.always}[words[0]]
            marked.update((current, name) for name in words[1:])
        elif words[0] == "name":
            overlay.names[f"io.k8s.{words[2]}"] = words[1]
        elif words[0] == "root":
            overlay.roots += words[1:]
        else:
            (current,) = words
    return overlay


def read_openapi() -> dict[str, Schema]:
    """Definitions by their full names."""
    found = importlib.util.find_spec("kubernetes_validate")
    if found is None or found.origin is None:
        raise SystemExit("kubernetes-validate is not installed: pip install 'localcluster[dev]'")
    folder = Path(found.origin).parent / "kubernetes-json-schema" / f"v{VERSION}.0-local"
    content = json.loads((folder / "_definitions.json").read_text(encoding="utf-8"))
    definitions: dict[str, Schema] = content["$defs"]
    return definitions


class Table:
    """The types that the roots are made of, as lines."""

    def __init__(self, definitions: dict[str, Schema], overlay: Overlay) -> None:
        self._definitions, self._overlay = definitions, overlay
        stable = {name for name in definitions if name.rpartition(".")[0].endswith("v1")}
        ours = {overlay.names.get(name, name.rpartition(".")[2]): name for name in sorted(stable)}
        self._full = ours | {short: full for full, short in overlay.names.items()}
        self._seen: set[str] = set()
        self.unused = {*overlay.pointers, *overlay.always}
        """Marks of the overlay that no field has taken."""

    def text(self) -> str:
        """The whole file."""
        found: dict[str, list[str]] = {}
        waiting = list(self._overlay.roots)
        while waiting:
            name = waiting.pop()
            if name not in found:
                self._seen = set()
                found[name] = self._lines(name)
                waiting += sorted(self._seen)
        return HEADER + "".join(f"{line}\n" for name in sorted(found) for line in found[name])

    def _lines(self, name: str) -> list[str]:
        schema = self._definitions[self._full[name]]
        required = schema.get("required", ())
        is_atomic = schema.get("x-kubernetes-map-type") == "atomic"
        lines = [f"{name} atomic" if is_atomic else name]
        for key, below in sorted(schema.get("properties", {}).items()):
            star = "*" if (name, key) in self._overlay.pointers else ""
            marks = _marks(below, is_required=key in required)
            if (name, key) in self._overlay.always:
                marks.append("always")
            self.unused.discard((name, key))
            lines.append(" ".join(["", "", key, star + self._type(below), *marks])[1:])
        return [lines[0], *(f" {line}" for line in lines[1:])]

    def _type(self, schema: Schema) -> str:
        if "$ref" in schema:
            return self._reference(schema["$ref"].rpartition("/")[2])
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        kind = next(kind for kind in kinds if kind != "null")
        form = schema.get("format")
        if kind == "array":
            return f"[]{self._type(schema['items'])}"
        if kind == "object":
            below = schema.get("additionalProperties")
            return f"map:{self._type(below)}" if below is not None else "any"
        if kind == "string":
            return {"byte": "bytes", "date-time": "time"}.get(str(form), "string")
        if kind == "integer":
            return str(form)
        return {"number": "float64", "boolean": "bool"}[kind]

    def _reference(self, full: str) -> str:
        if full in _OF_THEIR_OWN:
            name = _OF_THEIR_OWN[full]
            if name in self._full:
                self._seen.add(name)
            return name
        if "properties" not in self._definitions[full]:
            return "any"
        name = self._overlay.names.get(full, full.rpartition(".")[2])
        assert self._full[name] == full, f"{full}: overlay.txt must name it, {name} is another"
        self._seen.add(name)
        return name


def _marks(schema: Schema, *, is_required: bool) -> list[str]:
    marks = ["required"] if is_required else []
    strategies = schema.get("x-kubernetes-patch-strategy", "").split(",")
    if "merge" in strategies:
        key = schema.get("x-kubernetes-patch-merge-key")
        marks.append(f"merge={key}" if key else "merge")
    if "retainKeys" in strategies:
        marks.append("retainKeys")
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map":
        marks.append(f"keys={','.join(schema['x-kubernetes-list-map-keys'])}")
    elif kind == "set":
        marks.append("set")
    if schema.get("x-kubernetes-map-type") == "atomic":
        marks.append("atomic")
    return marks


def make_table() -> tuple[str, set[tuple[str, str]]]:
    """The table, and what the overlay marks that is in no type of it."""
    table = Table(read_openapi(), read_overlay())
    return table.text(), table.unused


def main() -> None:
    """Write the table."""
    text, unused = make_table()
    if unused:
        raise SystemExit(f"overlay.txt marks fields that do not exist: {sorted(unused)}")
    (FOLDER / "table.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
