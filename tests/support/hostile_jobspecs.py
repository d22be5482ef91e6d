"""Jobspecs at and beyond the bounds, as a tenant may write them: each costs little to write.

Used by tests of admission and of the matcher. Keys are names for test ids.
"""

from __future__ import annotations

from typing import Any

CORE = {"type": "core", "count": 1}


def series(low: int, high: int, operator: str = "+", operand: int = 1) -> dict[str, Any]:
    """A count that is not fixed."""
    return {"min": low, "max": high, "operator": operator, "operand": operand}


def slot(count: Any, label: str = "s", *inside: dict[str, Any]) -> dict[str, Any]:
    """Slots of a core, or of what is given."""
    return {"type": "slot", "count": count, "label": label, "with": list(inside) or [CORE]}


def above(kind: str, count: Any, *inside: dict[str, Any]) -> dict[str, Any]:
    """Something above slots."""
    return {"type": kind, "count": count, "with": list(inside)}


LEVELS = ("nvlink", "rack", "block", "zone", "region")


def _deep(count: Any) -> list[dict[str, Any]]:
    found = above("node", count, slot(count))
    for level in LEVELS:
        found = above(level, count, found)
    return [found]


def _constrained(constraints: Any, count: int = 4) -> dict[str, Any]:
    return {"resources": [slot(count)], "attributes": {"system": {"constraints": constraints}}}


def _not_not(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"hostlist": ["n1"]}
    for _ in range(depth):
        found = {"not": [found]}
    return found


HUGE = (1 << 32) - 1
HOSTILE: dict[str, Any] = {
    "siblings of moldable nodes": [
        above("node", series(1, 90), slot(series(1, 70), f"b{i}")) for i in range(15)
    ],
    "as many as may be written": [
        above("node", series(1, 9), slot(series(2, 70, "+", 3), f"b{i}")) for i in range(230)
    ],
    "irregular steps": [
        above(
            "rack",
            series(2, HUGE, "+", 3),
            above("node", series(3, HUGE, "*", 2), slot(series(5, HUGE, "+", 7), f"i{i}")),
            slot(series(1, 5), f"j{i}"),
        )
        for i in range(90)
    ],
    "moldable at every level": _deep(series(1, HUGE)),
    "powers": _deep(series(2, HUGE, "^", 2)),
    "doubled at every level": _deep(series(1, HUGE, "*", 2)),
    "fixed and huge at every level": _deep(HUGE),
    "beyond what a count may be": [slot(series(1, 1 << 63))],
    "an operand of one": [slot(series(2, 1000, "*", 1))],
    "an operand of none": [slot(series(2, 1000, "+", 0))],
    "slots of one kind each": [slot(1, f"w{i}") for i in range(499)],
    "slots with many things in them": [
        slot(1, f"w{i}", *({"type": f"example.com/r{n}", "count": n + 1} for n in range(90)))
        for i in range(10)
    ],
    "deep negation": _constrained(_not_not(31)),
    "deeper negation": _constrained(_not_not(90)),
    "many alternatives": _constrained({"or": [{"hostlist": [f"n{i}"]} for i in range(900)]}),
    "too many alternatives": _constrained({"or": [{"hostlist": [f"n{i}"]} for i in range(3000)]}),
    "hosts by the million": _constrained({"hostlist": ["n[1-99999]"] * 3000}),
    "hosts by the product": _constrained({"hostlist": ["n" + "[0-9]" * 15]}),
    "brackets below each other": _constrained({"hostlist": ["n" + "[1]" * 15_000]}),
    "ranks by the million": _constrained({"ranks": ["0-1999999"] * 3000}),
    "a constraint for each slot": {
        "resources": [slot(1, f"c{i}") for i in range(400)],
        "attributes": {
            "system": {
                "fluxqueue": {
                    "slots": {f"c{i}": {"constraints": {"hostlist": [f"n{i}"]}} for i in range(400)}
                }
            }
        },
    },
    "tasks of many in a slot": {
        "resources": [slot(4)],
        "tasks": [{"command": ["x"], "slot": "s", "count": {"per_slot": 1 << 62}}] * 800,
    },
}
