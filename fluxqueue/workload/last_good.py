"""Read a workload after its author has changed it into something that cannot be used.

Admission checks the creation only, so a later edit can spoil an annotation or the pods' request.
For a bad value the last good value of that key counts, or its default if there was none. All other
values are applied. The controller calls it if the plain reading has failed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.faults import ANNOTATION, TEMPLATE, Fault, as_text
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload.annotations import faults_of, values_of
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.objects import Object
from fluxqueue.workload.site import Site

TRIES_MAX = 8
"""Maximum readings of one object. One reading may cost as much as admission allows."""

FAULTS_MAX = 20
"""Maximum reported faults of one workload. An object may carry thousands of unknown keys."""

LAST_REQUEST = "the last request that could be read counts"

_KEY = re.compile(r"\[(fluxqueue/[^\]]{1,253})\]")


@dataclass(frozen=True, slots=True)
class Mended:
    """What can be read of a spoilt workload.

    ``workload``: every bad annotation is replaced or left out, so that its wishes can be read.
    ``request``, ``further``: as of its kind. ``request`` is None if it cannot be read, and
    ``faults`` give the reason. ``said``: the author's values that count, by key.
    """

    workload: Object
    request: Jobspec | None
    further: Jobspec | None
    said: Mapping[str, str]
    faults: tuple[Fault, ...]


@dataclass(slots=True)
class _Bad:
    """Keys with values that cannot be used: the replacements, and the reasons."""

    past: Mapping[str, str]
    values: dict[str, str | None] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)

    def blame(self, key: str, error: Exception) -> bool:
        """Use the last good value of a key, then its default. False if both have failed."""
        if not key or (key in self.values and self.values[key] is None):
            return False
        is_first = key not in self.values
        self.values[key] = self.past.get(key) if is_first else None
        self.errors.setdefault(key, error)
        return True

    def mend(self, workload: Object) -> Object:
        """Return the workload with replacements for the values that cannot be used."""
        return kind_of(workload).with_metas(workload, self._mend) if self.values else workload

    def _mend(self, meta: Object) -> Object:
        changed = dict(meta)
        for name in ("annotations", "labels"):
            said = meta.get(name) or {}
            if self.values.keys() & said.keys():
                kept = {key: self.values.get(key, value) for key, value in said.items()}
                changed[name] = {key: value for key, value in kept.items() if value is not None}
        return changed

    def faults(self) -> list[Fault]:
        """Return one fault for each key, in words."""
        found = []
        for key, error in islice(self.errors.items(), FAULTS_MAX):
            value = self.values[key]
            instead = "its default counts"
            if value is not None:
                instead = f"its last good value {value!r:.80} counts"
            found.append(Fault(ANNOTATION, key, as_text(error), instead))
        return found


def said_by(workload: Object) -> dict[str, str]:
    """Return the author's values in annotations and labels of a workload, by key."""
    return values_of(kind_of(workload).metas(workload))


def mend(workload: Object, past: Mapping[str, str], site: Site) -> Mended:
    """Read what can be read.

    Parameters: ``past`` has the author's values of the last successful reading (``Mended.said``).

    Raises
    ------
    Exception
        Not even its metadata can be read.
    """
    bad = _Bad(past)
    for key, error in faults_of(kind_of(workload).metas(workload)).items():
        bad.blame(key, error)
    # A last good value may be bad now: it is of another version, or conflicts with other keys.
    for key, error in faults_of(kind_of(workload).metas(bad.mend(workload))).items():
        bad.blame(key, error)
    trouble: Exception | None = None
    for _ in range(TRIES_MAX):
        current = bad.mend(workload)
        try:
            request, further = _read(current, site)
        except Exception as error:  # noqa: BLE001  whatever it is, it is of this object
            trouble = error
            if not bad.blame(_key_in(error, current), error):
                break
            continue
        return Mended(current, request, further, said_by(current), tuple(bad.faults()))
    return _without_request(workload, past, trouble)


def _without_request(
    workload: Object, past: Mapping[str, str], trouble: Exception | None
) -> Mended:
    """Read a workload with an unreadable pod request. All readable annotations count."""
    bad = _Bad(past)
    for _ in range(2):
        for key, error in faults_of(kind_of(workload).metas(bad.mend(workload))).items():
            bad.blame(key, error)
    for _ in range(TRIES_MAX):
        current = bad.mend(workload)
        try:
            kind_of(current).wishes(current)
        except InvalidInput as error:
            if not bad.blame(_key_in(error, current), error):
                raise
        else:
            break
    where = trouble.where if isinstance(trouble, InvalidInput) else ""
    said = as_text(trouble) if trouble is not None else "its request cannot be read"
    if trouble is not None and not isinstance(trouble, InvalidInput):
        said = f"its request cannot be read ({type(trouble).__name__}: {said})"
    fault = Fault(TEMPLATE, where, said, LAST_REQUEST)
    return Mended(current, None, None, said_by(current), (*bad.faults(), fault))


def _read(workload: Object, site: Site) -> tuple[Jobspec, Jobspec | None]:
    kind = kind_of(workload)
    kind.wishes(workload)
    return kind.to_request(workload, site=site), kind.further(workload, site=site)


def _key_in(error: Exception, workload: Object) -> str:
    """Return the key that an error blames, or empty if the object has no such key."""
    found = _KEY.search(error.where) if isinstance(error, InvalidInput) else None
    stands = {key for _, meta in kind_of(workload).metas(workload) for key in _keys(meta)}
    return found[1] if found is not None and found[1] in stands else ""


def _keys(meta: Mapping[str, Any]) -> set[str]:
    return {*(meta.get("annotations") or {}), *(meta.get("labels") or {})}
