"""The form of an answer: JSON or YAML, the object itself, a Table or only its metadata.

Reads, writes and watches call it with the ``Accept`` header. It also encodes the answer. It follows
``k8s.io/apiserver/pkg/endpoints/handlers/negotiation``. Protobuf is not served: a client that
accepts nothing else gets 406.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import yaml

from localcluster.server.http_refusals import not_acceptable


@dataclass(frozen=True, slots=True)
class Media:
    """The form of an answer.

    ``form`` is "", Table, PartialObjectMetadata or PartialObjectMetadataList. ``form_version`` is
    the version of that form's group (v1, v1beta1).
    """

    form: str = ""
    form_version: str = "v1"
    is_yaml: bool = False

    @property
    def content_type(self) -> str:
        """Return the value of the Content-Type header."""
        return "application/yaml" if self.is_yaml else "application/json"


_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")
_JSON = ("application/json", "*/*", "application/*")
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")


@lru_cache(maxsize=256)
def negotiate(accept: str) -> Media:
    """Return the first acceptable form of an ``Accept`` header.

    Raises :class:`StatusError` 406 if there is none.
    """
    if not accept.strip():
        return Media()
    has_form = False
    for clause in accept.split(","):
        media, *parameters = [part.strip() for part in clause.split(";")]
        values = dict(p.partition("=")[::2] for p in parameters)
        if media.lower() not in (*_JSON, *_YAML):
            continue
        is_yaml = media.lower() in _YAML
        form = values.get("as", "")
        if not form:
            return Media(is_yaml=is_yaml)
        has_form = True
        version = values.get("v", "")
        if form in _FORMS and values.get("g") == "meta.k8s.io" and version in ("v1", "v1beta1"):
            return Media(form, version, is_yaml)
    raise not_acceptable(is_plain=not has_form)


def encode(value: Any, media: Media) -> bytes:
    """Serialise an answer."""
    return to_yaml(value) if media.is_yaml else orjson.dumps(value)


def to_yaml(value: Any) -> bytes:
    """Return YAML as the real server writes it: sorted keys, double quotes where needed."""
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=False, allow_unicode=True)
    return text.encode()


def from_yaml(raw: bytes) -> Any:
    """Parse YAML 1.1 as the real server does (``y`` and ``n`` are booleans).

    Raises YAMLError.
    """
    return yaml.load(raw, Loader=_Loader)  # noqa: S506 - derived from the safe loader


def repeated_keys(raw: bytes) -> list[str]:
    """Return keys that occur twice in one map, with their lines, in the words of Go."""
    found: list[str] = []
    root = yaml.compose(raw, Loader=_Loader)
    waiting: list[yaml.Node] = [] if root is None else [root]
    known: set[int] = set()  # An alias is the node that it names, so nodes may repeat.
    while waiting:
        node = waiting.pop(0)
        if id(node) in known:
            continue
        known.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += node.value
        if not isinstance(node, yaml.MappingNode):
            continue
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                found.append(f'  line {line}: key "{key.value}" already set in map')
            seen.add(key.value)
            waiting.append(value)
    return ["yaml: unmarshal errors:\n" + "\n".join(found)] if found else []


_BaseLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[valid-type, misc]
    """Times stay text. One-letter booleans are recognised."""

    bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}  # noqa: RUF012
    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, regexp) for tag, regexp in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^[yYnN]$"), list("yYnN"))

_Base: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):  # type: ignore[valid-type, misc]
    """Quotes as Go does: ``"1"`` where PyYAML writes ``'1'``."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    resolved = dumper.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    plain = resolved == "tag:yaml.org,2002:str"
    style = "|" if "\n" in text else None if plain else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _quoted)
