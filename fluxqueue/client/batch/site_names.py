"""A site's names for nodes and devices: what ``--constraint=ib`` or ``--qos=high`` means here.

``submit`` and ``explain`` read the file once. Slurm's features, GRES types and QOS are names that
an administrator invents, so an administrator says what they are on this cluster. A name that the
file lacks is refused. The file is YAML:

    constraints: {ib: {example.com/fabric: infiniband}}
    gres: {"gpu:a100": {resource: nvidia.com/gpu, labels: {nvidia.com/gpu.product: NVIDIA-A100}}}
    qos: {high: {priority: 100}, debug: {queue: debug}}
    ignore: [hint, uenv]
    body: each-pod
    busybox: registry.example.com/busybox:1.37-musl
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fluxqueue.errors import InvalidInput

VARIABLE = "FLUXQUEUE_DIRECTIVES"
DEFAULT_FILE = "/etc/fluxqueue/directives.yaml"
GPU = "nvidia.com/gpu"
BUSYBOX = "busybox:1.37-musl"
"""The default image with a static busybox."""
_KEYS = ("constraints", "gres", "qos", "ignore", "body", "busybox")


@dataclass(frozen=True, slots=True)
class Device:
    """A device: its Kubernetes resource, and the labels of the nodes that have it."""

    resource: str = GPU
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Qos:
    """What a QOS becomes. None is *leave it*."""

    priority: int | None = None
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class SiteNames:
    """What a site defines. ``source`` is the file, for messages.

    ``ignore``: options that are left out of every script. ``is_each_pod``: scripts run in a pod for
    each task, unless they are submitted otherwise. ``busybox``: an image with a static one, which
    connects the pods of a script.
    """

    constraints: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gres: Mapping[str, Device] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)
    ignore: frozenset[str] = frozenset()
    is_each_pod: bool = False
    busybox: str = BUSYBOX
    source: str = DEFAULT_FILE


def load_site_names(file: str = "") -> SiteNames:
    """Read ``file``, the one that ``FLUXQUEUE_DIRECTIVES`` names, or the default one if it exists.

    Raises
    ------
    InvalidInput
        A named file cannot be read, or a file is not of this form.
    """
    named = file or os.environ.get(VARIABLE, "")
    path = Path(named or DEFAULT_FILE)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named:
            raise InvalidInput("no such file", where=VARIABLE, value=named) from None
        return SiteNames()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"cannot be read: {error}", where=str(path)) from None
    return read_site_names(text, str(path))


def read_site_names(text: str, source: str) -> SiteNames:
    """Read the text of such a file.

    Raises
    ------
    InvalidInput
        It is not YAML of this form. The error names the place.
    """
    import yaml

    try:
        document = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise InvalidInput(f"is not YAML: {error}", where=source) from None
    top = _mapping(document, source)
    unknown = sorted(top.keys() - set(_KEYS))
    if unknown:
        raise InvalidInput(f"{unknown[0]!r} is not known", where=source, hint=", ".join(_KEYS))
    ignore, body = top.get("ignore") or [], top.get("body", "once")
    if not isinstance(ignore, list) or not all(isinstance(one, str) for one in ignore):
        raise InvalidInput("is not a list of options", where=f"{source}: ignore", value=ignore)
    if body not in {"once", "each-pod"}:
        raise InvalidInput(
            "is neither once nor each-pod", where=f"{source}: body", value=body, hint="once"
        )
    return SiteNames(
        constraints={
            name: _labels(one, f"{source}: constraints.{name}")
            for name, one in _mapping(top.get("constraints"), f"{source}: constraints").items()
        },
        gres={
            name: _device(one, f"{source}: gres.{name}")
            for name, one in _mapping(top.get("gres"), f"{source}: gres").items()
        },
        qos={
            name: _qos(one, f"{source}: qos.{name}")
            for name, one in _mapping(top.get("qos"), f"{source}: qos").items()
        },
        ignore=frozenset(one.lstrip("-") for one in ignore),
        is_each_pod=body == "each-pod",
        busybox=str(top.get("busybox") or BUSYBOX),
        source=source,
    )


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput("is not a mapping", where=where, value=value)
    return {str(key): one for key, one in value.items()}


def _labels(value: Any, where: str) -> dict[str, str]:
    found = _mapping(value, where)
    if not found or not all(isinstance(one, str) for one in found.values()):
        raise InvalidInput(
            "must be labels with text as values", where=where, value=value, hint='{key: "value"}'
        )
    return {key: str(one) for key, one in found.items()}


def _device(value: Any, where: str) -> Device:
    found = _mapping(value, where)
    labels = found.get("labels")
    return Device(
        resource=str(found.get("resource") or GPU),
        labels=_labels(labels, f"{where}.labels") if labels else {},
    )


def _qos(value: Any, where: str) -> Qos:
    found = _mapping(value, where)
    priority, queue = found.get("priority"), found.get("queue")
    if priority is not None and (isinstance(priority, bool) or not isinstance(priority, int)):
        raise InvalidInput("is not a whole number", where=f"{where}.priority", value=priority)
    return Qos(priority, None if queue is None else str(queue))
