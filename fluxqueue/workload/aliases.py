"""Labels and annotations of other systems that stand for those of fluxqueue. Pure.

Admission and PlacementReviews call it. It adds fluxqueue's own key beside each alias, so no other
part knows an alias. Kueue's keys are aliases by default. A site can name its own, and say which
FluxQueue the name of a LocalQueue means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import InvalidInput, InvalidSettings
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import KEYS
from fluxqueue.workload.json_patch import at, edited
from fluxqueue.workload.object_paths import Path

KUEUE = {
    "kueue.x-k8s.io/queue-name": labels.QUEUE,
    "kueue.x-k8s.io/priority-class": labels.PRIORITY_CLASS,
    "kueue.x-k8s.io/pod-group-name": labels.POD_GROUP,
    "kueue.x-k8s.io/pod-group-total-count": labels.GROUP_SIZE,
    "kueue.x-k8s.io/podset-required-topology": labels.WITHIN,
    "kueue.x-k8s.io/podset-preferred-topology": labels.PREFER_WITHIN,
    "kueue.x-k8s.io/max-exec-time-seconds": labels.DURATION,
}
WITHOUT_MEANING = frozenset(
    {
        "kueue.x-k8s.io/elastic-job",
        "kueue.x-k8s.io/job-completions-equal-parallelism",
        "kueue.x-k8s.io/job-min-parallelism",
        "kueue.x-k8s.io/podset-unconstrained-topology",
        "kueue.x-k8s.io/podset-slice-required-topology",
        "kueue.x-k8s.io/podset-slice-size",
        "kueue.x-k8s.io/podset-group-name",
    }
)
"""Keys of Kueue that change how a workload starts, and that fluxqueue does not consider."""
PROVISIONING = "provreq.kueue.x-k8s.io/"
"""How the keys of ProvisioningRequests begin. They have no meaning here."""

KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a workload that Kueue would resume if its author created it suspended."""

SETS = {"kueue": KUEUE}
ANY_QUEUE = "*"
DEPTH_MAX = 12
"""Metadata deeper in an object is not translated. A template of a template is at depth 6."""

_KEY = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
_IN_LABELS = frozenset({labels.QUEUE, labels.POD_GROUP})


@dataclass(frozen=True, slots=True)
class Translated:
    """An object with fluxqueue's keys beside its aliases.

    ``names`` maps fluxqueue's keys to the aliases. ``left_out`` are aliases without a meaning here.
    """

    obj: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def in_words_of_author(self, error: InvalidInput) -> InvalidInput:
        """Return an error that names the key that the author wrote."""
        where = error.where or ""
        for ours, alias in self.names.items():
            where = where.replace(f"[{ours}]", f"[{alias}]")
        if where == (error.where or ""):
            return error
        return InvalidInput(error.message, where=where, value=error.value, hint=error.hint)


@dataclass(frozen=True, slots=True)
class Aliases:
    """The aliases of a site.

    ``keys`` maps aliases to fluxqueue's keys. ``queues`` maps the name of a LocalQueue, or
    ``NAMESPACE/NAME``, to a FluxQueue. ``*`` stands for all others.
    """

    keys: Mapping[str, str] = field(default_factory=lambda: dict(KUEUE))
    queues: Mapping[str, str] = field(default_factory=dict)

    def of(self, ours: str) -> list[str]:
        """Return the aliases of one of fluxqueue's keys, sorted."""
        return sorted(alias for alias, one in self.keys.items() if one == ours)

    def translate(self, obj: Mapping[str, Any], namespace: str) -> Translated:
        """Add fluxqueue's keys to all metadata of ``obj``. Those that are there already win.

        An object with the alias of a queue asks to be queued, unless it says otherwise.
        """
        changed = obj
        names: dict[str, str] = {}
        left_out: set[str] = set()
        for path in _metadata_of(obj):
            meta = at(obj, path)
            said = {**_texts(meta, "annotations"), **_texts(meta, "labels")}
            left_out |= WITHOUT_MEANING & said.keys()
            left_out |= {key for key in said if key.startswith(PROVISIONING)}
            for alias in sorted(self.keys.keys() & said.keys()):
                ours = self.keys[alias]
                if ours in said:
                    continue
                value = self._queue(said[alias], namespace) if ours == labels.QUEUE else said[alias]
                place = "labels" if ours in _IN_LABELS else "annotations"
                changed = edited(changed, {(*path, place, ours): value})
                names[ours] = alias
                if ours == labels.QUEUE and path == ("metadata",) and labels.MANAGED not in said:
                    changed = edited(changed, {(*path, "labels", labels.MANAGED): "true"})
        return Translated(changed, names, tuple(sorted(left_out)))

    def _queue(self, name: str, namespace: str) -> str:
        for one in (f"{namespace}/{name}", name, ANY_QUEUE):
            if one in self.queues:
                return self.queues[one]
        return name


def _texts(meta: Mapping[str, Any], place: str) -> dict[str, str]:
    found = meta.get(place)
    if not isinstance(found, Mapping):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _metadata_of(obj: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the paths of all metadata in an object: its own, and those of its templates."""
    if len(path) >= DEPTH_MAX:
        return
    if isinstance(obj, Mapping):
        for key, value in obj.items():
            if key == "metadata" and isinstance(value, Mapping):
                yield (*path, key)
            elif key != "status" and isinstance(value, Mapping | list):
                yield from _metadata_of(value, (*path, key))
    elif isinstance(obj, list):
        for number, value in enumerate(obj):
            if isinstance(value, Mapping | list):
                yield from _metadata_of(value, (*path, number))


def parse_aliases(keys: str, queues: str, where: str = "FLUXQUEUE_ALIASES") -> Aliases:
    """Read the settings.

    Parameters
    ----------
    keys : ``kueue`` for Kueue's keys, and ``ALIAS=KEY`` with a key of fluxqueue without its prefix:
        ``kueue,my.org/walltime=duration``. ``none`` means no aliases.
    queues : ``LOCALQUEUE=FLUXQUEUE`` with commas.

    Raises
    ------
    InvalidSettings
        An entry cannot be read.
    """
    found: dict[str, str] = {}
    for entry in _entries(keys):
        if entry in SETS:
            found |= SETS[entry]
        elif entry != "none":
            found |= dict([_pair(entry, where)])
    return Aliases(found, _queue_names(queues))


def _pair(entry: str, where: str) -> tuple[str, str]:
    alias, separator, name = entry.partition("=")
    ours = f"{labels.PREFIX}{name.removeprefix(labels.PREFIX)}"
    known = sorted(KEYS.keys() - {labels.MANAGED})
    is_alias = _KEY.fullmatch(alias) and not alias.startswith(labels.PREFIX)
    if separator and ours in known and is_alias:
        return alias, ours
    names = ", ".join(one.removeprefix(labels.PREFIX) for one in known)
    hint = f"write kueue, none, or ALIAS=KEY with a key of {names}"
    raise InvalidSettings(f"{entry!r} is no alias", where=where, value=entry, hint=hint)


def _queue_names(text: str, where: str = "FLUXQUEUE_QUEUE_NAMES") -> dict[str, str]:
    found = {}
    for entry in _entries(text):
        name, separator, queue = entry.partition("=")
        if not (separator and name and queue):
            hint = "write LOCALQUEUE=FLUXQUEUE, NAMESPACE/LOCALQUEUE=FLUXQUEUE or *=FLUXQUEUE"
            raise InvalidSettings(f"{entry!r} maps no queue", where=where, value=entry, hint=hint)
        found[name] = queue
    return found


def _entries(text: str) -> list[str]:
    return [one.strip() for one in text.split(",") if one.strip()]


DEFAULT_ALIASES = Aliases()
NOTHING_SAID = Translated({})
"""An object without aliases."""
