"""The vectorised matcher: one number per node instead of a visit to every core.

What the reference walk finds inside a block (a node with all vertices below it) depends on two
things. These are the block's shape, and which of its vertices are taken. So it is computed once per
shape and state, and cached. For each request there is a *table*. It has for every block how many
candidates it offers, and the sort key of the best one. A booking changes only the rows of its own
blocks. A match is then a minimum over an array. A match that cannot succeed is one comparison.

``FluxionMatcher`` calls it. ``levels`` chooses the levels that a request names above the nodes. The
reference walk answers the requests that tables cannot answer exactly (several kinds of slots,
exclusive racks). It also evaluates the inside of a block here. Pure.
"""

from __future__ import annotations

from collections import OrderedDict

from fluxion.ledger.booking import Booking
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.match.compiled_request import Need, WalkRequest
from fluxion.match.vertices.block_levels import LevelChoice, LevelMap, levels_of
from fluxion.match.vertices.block_table import BlockTable
from fluxion.match.vertices.block_walk import BlockPlan
from fluxion.match.walk.traversal import Allowed
from fluxion.match.walk.vertex_check import Window
from fluxqueue.graph.match.policy import MAX_SCORE, NODE_FACTOR, Policy

MAX_PLANS = 32
MAX_LOG = 100_000


class Prepared:
    """A request under a policy: its plan, the tables made for it, and the places of its levels."""

    __slots__ = ("level_map", "plan", "tables")

    def __init__(self, plan: BlockPlan) -> None:
        self.plan = plan
        self.tables: dict[tuple[bool, bool], BlockTable] = {}
        self.level_map: LevelMap | None = None


class FastSelector:
    """Answers matches for one graph. Caches tables for the last requests and policies."""

    def __init__(self, state: VertexLedger, order: ChildOrder) -> None:
        self.state, self.order, self.graph = state, order, state.graph
        self._plans: OrderedDict[object, Prepared | None] = OrderedDict()
        self.max_log = MAX_LOG
        self._stamp = 0
        graph = self.graph
        self._has_tops = bool(graph.tops) and 0 in graph.tops
        node = graph.type_number["node"]
        self._is_regular = self._has_tops and all(
            shape.types[0] == node and node not in shape.types[1:] for shape in graph.shapes
        )
        largest = max((abs(graph.id[v]) for v in range(len(graph))), default=0) + 2
        vertices = max((len(shape.types) for shape in graph.shapes), default=0) + 1
        self._is_regular &= largest * NODE_FACTOR * vertices < MAX_SCORE
        self._top_kinds = {graph.type_of[v] for v in graph.tops}
        self._top_child_kinds = {
            frozenset(graph.type_of[c] for c in graph.children.get(v, ())) for v in graph.tops
        }

    def select(
        self, request: WalkRequest, policy: Policy, window: Window, constraint: Allowed | None
    ) -> tuple[bool, Booking | None]:
        """Return whether tables can answer the request, and the booking if it is possible."""
        if len(self.state.log) > self.max_log:
            self._shorten_log()
        known = self._plan_for(request, policy)
        if known is None:
            return False, None
        table = known.tables.get((window.is_now, window.ignores_status))
        if table is None:
            table = BlockTable(self.state, self.order, known.plan, window, constraint)
            known.tables[window.is_now, window.ignores_status] = table
        else:
            table.follow(window)
        return True, self._choose(known, table)

    def _choose(self, prepared: Prepared, table: BlockTable) -> Booking | None:
        levels = prepared.plan.levels
        if not levels:
            return table.choose()
        known = prepared.level_map
        if known is None or known.version != self.graph.version:
            known = prepared.level_map = LevelMap(self.graph, levels)
        return LevelChoice(table, known).choose()

    def forget_constraints(self) -> None:
        """Forget which nodes constraints allow, because properties have changed."""
        self._plans.clear()
        self._stamp += 1

    def _plan_for(self, request: WalkRequest, policy: Policy) -> Prepared | None:
        if not self._is_regular:
            return None
        # A compiled request belongs to one graph, and so to one selector.
        stamp, known = request.plans.get(policy.name, (-1, None))
        if stamp == self._stamp:
            assert known is None or isinstance(known, Prepared)
            return known
        plan = self._find_plan(request, policy)
        request.plans[policy.name] = self._stamp, plan
        return plan

    def _find_plan(self, request: WalkRequest, policy: Policy) -> Prepared | None:
        key = (request.key, policy)
        try:
            plan = self._plans[key]
            self._plans.move_to_end(key)
            return plan
        except KeyError:
            pass
        plan = self._make_plan(request, policy)
        self._plans[key] = plan
        if len(self._plans) > MAX_PLANS:
            self._plans.popitem(last=False)
            self._stamp += 1
        return plan

    def _make_plan(self, request: WalkRequest, policy: Policy) -> Prepared | None:
        if len(request.needs) != 1 or request.has_several_kinds:
            return None
        levels: tuple[Need, ...] = ()
        if request.needs[0].kind in self._top_kinds:
            named = levels_of(self.graph, request.needs)
            if named is None:
                return None
            levels = named
        top = levels[-1].children[0] if levels else request.needs[0]
        if top.is_slot and self._slot_could_match_above(top):
            return None
        return Prepared(BlockPlan(self.graph, request, policy, levels))

    def _slot_could_match_above(self, slot: Need) -> bool:
        parts = {part.kind for part in slot.children}
        return any(parts <= kinds for kinds in self._top_child_kinds)

    def _shorten_log(self) -> None:
        for plan in self._plans.values():
            for table in plan.tables.values() if plan is not None else ():
                table.catch_up()
                table.position = 0
        self.state.log.clear()
