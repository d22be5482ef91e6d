"""The levels of a cluster between its root and its nodes, and their node labels.

``FLUXQUEUE_LEVELS`` configures them, top first. ``workload`` reads them to check the level in a
request, ``graph`` to build the tree of the nodes, and the displays of the tree to show it. A place
is identified by its whole path: racks of one name in two zones are two racks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.node import NodeFact

UNKNOWN = "unknown"
"""Type and name of the vertex that holds nodes without a label for a level."""
NODE_WORDS = frozenset({"node", "host", "hostname", "kubernetes.io/hostname"})
"""What authors call the level of single nodes."""
LEVELS_MAX = 16
LABELS_MAX = 16
_RESERVED = frozenset(
    {"cluster", "node", "host", "hostname", "slot", "core", "cpu", "gpu", "memory", "pods"}
    | {"socket", "numanode", "storage", UNKNOWN}
)
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL = re.compile(
    r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)


@dataclass(frozen=True, slots=True)
class Level:
    """One level: its name, which is the vertex type, and the labels that place a node in it.

    The first label that a node has counts, because clouds use different labels for one thing.
    """

    name: str
    labels: tuple[str, ...]

    def place(self, labels: Mapping[str, str]) -> str | None:
        """Return the place in this level of a node with ``labels``, or None.

        A node may also have the name of the level itself as a label.
        """
        for key in (*self.labels, self.name):
            if value := labels.get(key):
                return value
        return None


Levels: TypeAlias = tuple[Level, ...]

DEFAULT_LEVELS: Levels = (
    Level("region", ("topology.kubernetes.io/region",)),
    Level("zone", ("topology.kubernetes.io/zone",)),
    Level(
        "block",
        (
            "topology.kubernetes.io/block",
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "cloud.provider.com/topology-block",
            "network.topology.nvidia.com/spine",
        ),
    ),
    Level(
        "rack",
        (
            "topology.kubernetes.io/rack",
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "cloud.provider.com/topology-rack",
            "network.topology.nvidia.com/leaf",
        ),
    ),
    Level(
        "nvlink",
        (
            "nvidia.com/gpu.clique",
            "network.topology.nvidia.com/accelerator",
            "accelerator.topograph.run/domain",
        ),
    ),
)
"""The labels of Kubernetes, of clouds, of the GPU operator and of Topograph."""


def path_of(levels: Sequence[Level], labels: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the place of a node in each level, top first. None: it has no place there."""
    return tuple(level.place(labels) for level in levels)


def levels_in_use(levels: Sequence[Level], facts: Iterable[NodeFact]) -> Levels:
    """Return the levels for which at least one node has a label."""
    found: set[str] = set()
    for fact in facts:
        found.update(level.name for level in levels if level.place(fact.labels))
    return tuple(level for level in levels if level.name in found)


def find_level(levels: Iterable[Level], word: str) -> Level | None:
    """Return the level that an author means, by its name or by one of its labels."""
    for level in levels:
        if word == level.name or word in level.labels:
            return level
    return None


def parse_levels(text: str, where: str = "FLUXQUEUE_LEVELS") -> Levels:
    """Read ``zone=topology.kubernetes.io/zone,rack=my.org/rack|other.org/rack``, top first.

    A name alone means the default level of that name. ``none`` means no levels.

    Raises
    ------
    InvalidSettings
        A name or label is not valid, or means two levels.
    """
    if text.strip() == "none":
        return ()
    found = tuple(_parse_level(part.strip(), where) for part in text.split(","))
    check_levels(found, where)
    return found


def _parse_level(part: str, where: str) -> Level:
    name, _, labels = part.partition("=")
    name = name.strip()
    if labels.strip():
        return Level(name, tuple(label.strip() for label in labels.split("|")))
    default = next((level for level in DEFAULT_LEVELS if level.name == name), None)
    if default is None or "=" in part:
        known = ", ".join(level.name for level in DEFAULT_LEVELS)
        raise InvalidSettings(
            f"{part!r} is not a known level",
            where=where,
            value=part,
            hint=f"write NAME=LABEL or NAME=LABEL|LABEL, or a name alone: {known}",
        )
    return default


def check_levels(levels: Sequence[Level], where: str) -> None:
    """Refuse levels that cannot form a tree. Raises ``InvalidSettings``."""
    if len(levels) > LEVELS_MAX:
        raise InvalidSettings(f"has more than {LEVELS_MAX} levels", where=where)
    seen: dict[str, str] = {}
    for level in levels:
        if not _NAME.fullmatch(level.name) or level.name in _RESERVED:
            raise InvalidSettings(
                f"{level.name!r} cannot be the name of a level",
                where=where,
                value=level.name,
                hint="lower-case letters, digits and '-', beginning with a letter; "
                f"not {', '.join(sorted(_RESERVED))}",
            )
        if len(level.labels) > LABELS_MAX:
            raise InvalidSettings(
                f"level {level.name} has more than {LABELS_MAX} labels", where=where
            )
        for word in level.labels:
            _check_word(word, where)
        # The label of a level may be its own name without a conflict.
        for word in (level.name, *(label for label in level.labels if label != level.name)):
            if word in seen:
                raise InvalidSettings(
                    f"{word!r} means two levels",
                    where=where,
                    value=word,
                    hint=f"level {seen[word]} has it already: use each label once",
                )
            seen[word] = level.name


def _check_word(word: str, where: str) -> None:
    if not _LABEL.fullmatch(word) or word in NODE_WORDS:
        raise InvalidSettings(
            f"{word!r} cannot be the label of a level",
            where=where,
            value=word,
            hint="the key of a node label, such as topology.kubernetes.io/rack; "
            "a node is always the lowest level",
        )
