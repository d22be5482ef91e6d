"""``find``: expressions over vertices, such as ``status=down and sched-now=allocated``.

Predicates and operators are Fluxion's (flux-sched, resource/evaluators). ``and`` and ``or`` bind
equally and from the left. Two predicates side by side mean ``and``. Parentheses group.
``FluxionMatcher.find`` calls it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from fluxion.ledger.booking import Booking
from fluxion.ledger.resource_set import ResourceSet
from fluxion.ledger.vertices import VertexLedger
from fluxion.model.shapes import iterate_bits
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob import hostlist

MAX_WORDS = 1000
MAX_DEPTH = 50
_WORD = re.compile(r"\(|\)|[^\s()]+")
_VALUES = {
    "status": ("up", "down"),
    "sched-now": ("allocated", "free"),
    "sched-future": ("reserved", "free"),
    "agfilter": ("true", "t", "false", "f"),
}
PREDICATES = "status, sched-now, sched-future, names, property, jobid-..., agfilter"
_JOB_PREDICATES = ("jobid-alloc", "jobid-reserved", "jobid-span", "jobid-tag")


@dataclass(slots=True)
class _FindView:
    """What the predicates read of one vertex. The three states are inherited from above."""

    v: int = 0
    is_down: bool = False
    is_allocated: bool = False
    is_reserved: bool = False


Predicate = Callable[[_FindView], bool]


class Finder:
    """One expression, parsed for one state.

    Raises
    ------
    InvalidInput
        When created, if the expression cannot be parsed. The error names the word.
    """

    def __init__(self, state: VertexLedger, expression: str) -> None:
        self.state, self.graph = state, state.graph
        self.wants_filters = False
        self.job: int | None = None
        self._words = _WORD.findall(expression)
        if len(self._words) > MAX_WORDS:
            raise InvalidInput(f"has more than {MAX_WORDS} words", where="expression")
        self._position = 0
        self._test = self._parse(0)
        if self._position < len(self._words):
            raise InvalidInput("has a ) too many", where="expression", value=expression)

    def run(self, now: int) -> ResourceSet:
        """Return all vertices for which the expression holds, and all vertices above them."""
        booking = Booking(0, 0, 0)
        extras: dict[int, dict[str, str]] = {}
        self._visit(_FindView(), booking, extras, now)
        return ResourceSet(self.graph, booking, extras=extras)

    def _visit(
        self, above: _FindView, booking: Booking, extras: dict[int, dict[str, str]], now: int
    ) -> bool:
        v, graph = above.v, self.graph
        jobs = self.state.jobs_at(v).values()
        view = _FindView(
            v,
            above.is_down or v in graph.down,
            above.is_allocated or self._is_allocated(v, now),
            above.is_reserved or any(own and b.is_reservation for own, b in jobs),
        )
        is_shown = False
        for child in graph.children.get(v, ()):
            below = _FindView(child, view.is_down, view.is_allocated, view.is_reserved)
            is_shown = self._visit(below, booking, extras, now) or is_shown
        if not self._test(view) and not is_shown:
            return False
        if self.wants_filters:
            amounts = self._filter_of(v, now)
            if amounts is None:
                return False
            extras[v] = amounts
        self._show(v, booking)
        return True

    def _is_allocated(self, v: int, now: int) -> bool:
        """Return whether an allocation holds the vertex.

        A pool is allocated when nothing is left of it.
        """
        graph, state = self.graph, self.state
        if graph.type_of[v] in graph.consumable:
            used = state.units_used(v, now, now + 1, is_now=True) + graph.foreign.get(v, 0)
            if used >= graph.size[v]:
                return True
            jobs = [b for own, b in state.jobs_at(v).values() if own and v not in b.shares]
        else:
            jobs = [b for own, b in state.jobs_at(v).values() if own]
        return any(not b.is_reservation for b in jobs)

    def _show(self, v: int, booking: Booking) -> None:
        number = self.graph.block_of[v]
        if number < 0:
            booking.tops[v] = True
        else:
            mask = booking.blocks.get(number, (0, 0))[0] | 1 << (v - self.graph.blocks[number].base)
            booking.blocks[number] = (mask, mask)

    # -- aggregate filters ------------------------------------------------------------------

    def _filter_of(self, v: int, now: int) -> dict[str, str] | None:
        """Return used and total units below ``v``, by type, or None if nothing is summed."""
        state, graph = self.state, self.graph
        types = state.filters.types_at(graph.type_of[v])
        if v not in graph.children or not types:
            return None
        number = graph.block_of[v]
        found: dict[str, str] = {}
        for index, kind in enumerate(types):
            if number < 0:
                planner = state.planners[v]
                total = planner.totals[index]
                if self.job is None:
                    used = planner.used_at(now, index)
                elif self.job in planner.spans:
                    used = planner.spans[self.job][2][index]
                else:
                    return None
            else:
                block = graph.blocks[number]
                inside = block.shape.below(v - block.base) & ~(1 << (v - block.base))
                total = block.shape.count(kind, inside)
                held = self._held(number, inside, now)
                if held is None:
                    return None
                used = block.shape.count(kind, held) + self._share_of(number, kind, inside, now)
            found[graph.types[kind]] = f"used:{used}, total:{total}"
        return found

    def _share_of(self, number: int, kind: int, inside: int, now: int) -> int:
        """Return the units taken of the consumable pools of a type below a vertex of a block."""
        graph, state = self.graph, self.state
        if kind not in graph.consumable:
            return 0
        block = graph.blocks[number]
        pools = [block.base + i for i in iterate_bits(block.shape.type_mask.get(kind, 0) & inside)]
        if self.job is not None:
            booking = state.bookings.get(self.job)
            return sum(booking.shares.get(v, 0) for v in pools) if booking else 0
        return sum(state.units_used(v, now, now + 1) for v in pools)

    def _held(self, number: int, inside: int, now: int) -> int | None:
        spans = self.state.block_spans[number]
        if self.job is not None:
            span = spans.get(self.job)
            return span[2] & inside if span is not None and span[3] & inside else None
        held = 0
        for start, end, booked, _, _, _ in spans.values():
            if start <= now < end:
                held |= booked & inside
        return held

    # -- parsing ----------------------------------------------------------------------------

    def _parse(self, depth: int) -> Predicate:
        if depth > MAX_DEPTH:
            raise InvalidInput(f"is nested deeper than {MAX_DEPTH}", where="expression")
        result = self._parse_one(depth)
        while self._position < len(self._words) and self._words[self._position] != ")":
            word = self._words[self._position]
            if word in ("and", "or"):
                self._position += 1
            result = _join(result, self._parse_one(depth), is_or=word == "or")
        return result

    def _parse_one(self, depth: int) -> Predicate:
        if self._position >= len(self._words):
            raise InvalidInput("ends where a predicate is expected", where="expression")
        word = self._words[self._position]
        self._position += 1
        if word != "(":
            return self._predicate(word)
        inner = self._parse(depth + 1)
        if self._position >= len(self._words):
            raise InvalidInput("has a ( that does not close", where="expression")
        self._position += 1
        return inner

    def _predicate(self, word: str) -> Predicate:
        key, equals, value = word.partition("=")
        low = value.lower()
        if not equals or (key in _VALUES and low not in _VALUES[key]):
            known = ", ".join(sorted(_VALUES.get(key, ())))
            raise InvalidInput(
                "is no predicate",
                where="expression",
                value=word,
                hint=f"{key}= one of {known}" if known else PREDICATES,
            )
        match key:
            case "status":
                return lambda view: view.is_down == (low == "down")
            case "sched-now":
                return lambda view: view.is_allocated == (low == "allocated")
            case "sched-future":
                return lambda view: view.is_reserved == (low == "reserved")
            case "agfilter":
                self.wants_filters = low in ("true", "t")
                return lambda _: low in ("true", "t")
            case "names":
                names = frozenset(hostlist.expand(low))
                return lambda view: self.graph.name(view.v) in names
            case "property" if low:
                return lambda view: low in self.graph.properties.get(view.v, ())
        if key in _JOB_PREDICATES:
            return self._job_predicate(key, value)
        raise InvalidInput(
            "is no predicate",
            where="expression",
            value=word,
            hint=PREDICATES,
        )

    def _job_predicate(self, key: str, value: str) -> Predicate:
        if not (value.isascii() and value.isdigit() and len(value) < 20):
            raise InvalidInput("is no job id", where="expression", value=value)
        job = self.job = int(value)
        if key == "jobid-span":
            return lambda view: self._has_span(view.v, job)
        if key == "jobid-tag":
            return lambda view: job in self.state.jobs_at(view.v)
        wants_reservation = key == "jobid-reserved"

        def holds(view: _FindView) -> bool:
            own, booking = self.state.jobs_at(view.v).get(job, (False, None))
            return own and booking is not None and booking.is_reservation == wants_reservation

        return holds

    def _has_span(self, v: int, job: int) -> bool:
        """Return whether the job takes summed units below ``v``."""
        graph = self.graph
        if v not in graph.children or not self.state.filters.types_at(graph.type_of[v]):
            return False
        number = graph.block_of[v]
        if number < 0:
            return job in self.state.planners[v].spans
        block = graph.blocks[number]
        span = self.state.block_spans[number].get(job)
        inside = block.shape.below(v - block.base) & ~(1 << (v - block.base))
        tracked = 0
        for kind in self.state.filters.tracked:
            tracked |= block.shape.type_mask.get(kind, 0)
        return span is not None and bool(span[3] & inside & tracked)


def _join(left: Predicate, right: Predicate, *, is_or: bool) -> Predicate:
    if is_or:
        return lambda view: left(view) or right(view)
    return lambda view: left(view) and right(view)
