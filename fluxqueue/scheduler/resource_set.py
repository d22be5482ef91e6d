"""R, the granted resources of an allocation, in Flux's RV1 format (RFC 20).

fluxqueue grants shares of a node (millicores, bytes), which RV1 cannot express. So R lists the
nodes, and the cores of each share rounded up as core ids, for tools that read only R_lite.

The exact grant of each slot is in ``attributes.fluxqueue.slots``, from which rows can be rebuilt.
Consecutive equal slots are written once with a ``count``. A thousand single slots would add 60 KB
to each version of a FluxJob, and etcd accepts 1.5 MB.

Slots that a running job has returned stay listed, because their numbers are those of indexes.
``attributes.fluxqueue.returned`` names them.

Nodes of a rack that is held whole are listed with all their cores, with or without a slot. Fluxion
lists everything below an exclusive vertex in the same way. ``attributes.fluxqueue.held`` names
these nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import compress, expand
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import idset

MILLICORES = 1000
SLOTS_MAX = 100_000
NAME_MAX = 253
TIME_MAX = 2**40
AMOUNT_MAX = 2**62


def to_resource_set(
    slots: Sequence[tuple[str, Mapping[str, int]]],
    *,
    starts_at: int,
    until: int | None,
    held: Sequence[tuple[str, Mapping[str, int]]] = (),
    kinds: Sequence[str] = (),
    returned: Sequence[int] = (),
) -> dict[str, Any]:
    """Return R for the slots of an allocation.

    Parameters
    ----------
    slots : Node and resources (base units) of each slot, in slot order.
    starts_at, until : Epoch seconds. ``until`` None is unlimited, written as 0 as Flux does.
    held : Nodes that are held whole, each with all its resources.
    kinds : Label of the kind of each slot, empty if all are equal.
    returned : Numbers of the slots that the job has given back, from 0.
    """
    whole = {node for node, _ in held}
    taken = [*(one for one in slots if one[0] not in whole), *held]
    nodes = list(dict.fromkeys(node for node, _ in (*slots, *held)))
    cores = dict.fromkeys(nodes, 0)
    gpus = dict.fromkeys(nodes, 0)
    for node, resources in taken:
        cores[node] += resources.get(CPU, 0)
        gpus[node] += sum(amount for name, amount in resources.items() if name.endswith("/gpu"))
    return {
        "version": 1,
        "execution": {
            "R_lite": [
                {
                    "rank": str(rank),
                    "children": _children(-(-cores[node] // MILLICORES), gpus[node]),
                }
                for rank, node in enumerate(nodes)
            ],
            "nodelist": [compress(nodes)] if nodes else [],
            "starttime": starts_at,
            "expiration": 0 if until is None else until,
        },
        "attributes": {
            "fluxqueue": {
                "slots": _runs(
                    {"node": node, "resources": dict(resources), **({"kind": kind} if kind else {})}
                    for (node, resources), kind in zip_longest(slots, kinds[: len(slots)])
                ),
                **({"returned": idset.encode(returned)} if returned else {}),
                **({"held": [compress(node for node, _ in held)]} if held else {}),
            }
        },
    }


def _runs(slots: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive equal slots into one with their ``count``, omitted for one."""
    runs = [(slot, sum(1 for _ in equal)) for slot, equal in groupby(slots)]
    return [{**slot, "count": count} if count > 1 else slot for slot, count in runs]


def _children(cores: int, gpus: int) -> dict[str, str]:
    """Return the core and gpu ids as Flux writes them: ``0`` or ``0-N``."""
    counts = {"core": cores, "gpu": gpus}
    return {
        name: "0" if count == 1 else f"0-{count - 1}" for name, count in counts.items() if count
    }


@dataclass(frozen=True, slots=True)
class GivenSlots:
    """The content of an R: node and resources of each slot, in slot order.

    ``starts_at`` and ``until`` are epoch seconds, ``until`` None is unlimited. ``held`` are the
    nodes held whole, with or without a slot. ``kinds`` are the labels of the slots' kinds, empty if
    there are none or an older version wrote R. ``returned`` are the numbers of slots that the job
    has given back.
    """

    slots: tuple[tuple[str, Mapping[str, int]], ...]
    starts_at: int
    until: int | None
    held: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    returned: frozenset[int] = frozenset()

    @property
    def kept(self) -> tuple[tuple[str, Mapping[str, int]], ...]:
        """Return the slots that the job still has."""
        return tuple(one for n, one in enumerate(self.slots) if n not in self.returned)


def read_resource_set(resource_set: object) -> GivenSlots:
    """Read back what ``to_resource_set`` wrote.

    R is in an object that other users may be allowed to change. So every field is checked, and only
    values that could have been written here are accepted.

    Raises
    ------
    InvalidInput
        A field is not valid. The error names it. The caller continues without R.
    """
    top = _mapping(resource_set, "R")
    if top.get("version") != 1:
        raise _refused("R.version", top.get("version"), "must be 1")
    execution = _mapping(top.get("execution"), "R.execution")
    starts_at = _whole(execution.get("starttime"), "R.execution.starttime", TIME_MAX)
    until = _whole(execution.get("expiration"), "R.execution.expiration", TIME_MAX)
    if until and until < starts_at:
        raise _refused("R.execution.expiration", until, "must not be before starttime")
    ours = _mapping(_mapping(top.get("attributes"), "R.attributes").get("fluxqueue"), "R...")
    slots, kinds = _expanded(ours.get("slots"), "R.attributes.fluxqueue.slots")
    returned = _returned(ours.get("returned", ""), len(slots))
    return GivenSlots(slots, starts_at, until or None, _held(ours.get("held", [])), kinds, returned)


def _expanded(
    runs: object, where: str
) -> tuple[tuple[tuple[str, Mapping[str, int]], ...], tuple[str, ...]]:
    """Return each slot, and the kind of each."""
    if not isinstance(runs, list) or not 0 < len(runs) <= SLOTS_MAX:
        raise _refused(where, type(runs).__name__, f"must be a list of 1 to {SLOTS_MAX} slots")
    slots: list[tuple[str, Mapping[str, int]]] = []
    kinds: list[str] = []
    for number, run in enumerate(runs):
        at = f"{where}[{number}]"
        slot, kind = _slot(run, at), _kind(run, at)
        count = _whole(run.get("count", 1), f"{at}.count", SLOTS_MAX - len(slots))
        if not count:
            raise _refused(f"{at}.count", count, "must be 1 or more")
        slots += [slot] * count
        kinds += [kind] * count
    return tuple(slots), tuple(kinds)


def _returned(text: object, count: int) -> frozenset[int]:
    where = "R.attributes.fluxqueue.returned"
    try:
        found = idset.decode(text, most=count) if isinstance(text, str) else [-1]
    except InvalidInput:
        found = [-1]
    if found and not 0 <= min(found) <= max(found) < count:
        raise _refused(where, text, f"must be an idset of slots from 0 to {count - 1}")
    return frozenset(found)


def _held(lists: object) -> tuple[str, ...]:
    where = "R.attributes.fluxqueue.held"
    if not isinstance(lists, list) or not all(isinstance(one, str) for one in lists):
        raise _refused(where, type(lists).__name__, "must be a list of hostlists")
    found = tuple(name for one in lists for name in expand(one))
    if len(found) > SLOTS_MAX or not all(_is_name(name) for name in found):
        raise _refused(where, len(found), f"must be at most {SLOTS_MAX} names of nodes")
    return found


def _kind(slot: Mapping[str, object], where: str) -> str:
    kind = slot.get("kind", "")
    if not isinstance(kind, str) or (kind and not _is_name(kind)):
        raise _refused(f"{where}.kind", kind, "must be the label of a kind of slots")
    return kind


def _slot(slot: object, where: str) -> tuple[str, Mapping[str, int]]:
    found = _mapping(slot, where)
    node = found.get("node")
    if not isinstance(node, str) or not _is_name(node):
        raise _refused(f"{where}.node", node, "must be the name of a node")
    resources = _mapping(found.get("resources"), f"{where}.resources")
    if not all(_is_name(name) for name in resources):
        raise _refused(f"{where}.resources", sorted(resources), "must be names of resources")
    return node, {
        str(name): _whole(amount, f"{where}.resources.{name}", AMOUNT_MAX)
        for name, amount in resources.items()
    }


def _is_name(value: str) -> bool:
    """Return whether ``value`` may be a name. Rows cannot hold a NUL."""
    return 0 < len(value) <= NAME_MAX and "\0" not in value


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _refused(where, type(value).__name__, "must be an object")
    return value


def _whole(value: object, where: str, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise _refused(where, value, f"must be a whole number from 0 to {high}")
    return value


def _refused(where: str, value: object, hint: str) -> InvalidInput:
    return InvalidInput(f"{str(value)[:80]!r} is not allowed", where=where, value=value, hint=hint)
