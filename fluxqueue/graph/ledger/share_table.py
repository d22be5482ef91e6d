"""The table of shares: nodes and their resources, and what a slot or a placement takes of them.

A cluster is a table of nodes x resources in integer base units (millicores, bytes, units). Every
node has a hidden pool of 2^30 shares of itself. Each slot takes one share, and an exclusive job
takes all of them (Fluxion's ``x_checker``, flux-sched, resource/schema/data_std.hpp). Rows of
removed nodes are reused. ``shares.ShareLedger`` keeps the bookings. Pure.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fluxqueue.fluxjob.exclusive_use import ONE_POD_CLAIM, implied_capacity, is_exclusive
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.arrays import Matrix, Vector
from fluxqueue.graph.ledger.node_masks import NodeMasks
from fluxqueue.graph.ledger.node_table import AllocationTable, Emptiness
from fluxqueue.graph.ledger.placement import Others, Placement
from fluxqueue.graph.ledger.places import Path, Topology
from fluxqueue.graph.ledger.timeline import Hold
from fluxqueue.jobspec.demand import Bundle

SHARES = "node-shares"
SHARES_TOTAL = 1 << 30
ROWS_STEP = 64
VECTORS_MAX = 4096
PORTS_MAX = 256
"""Host ports that are counted. Each is a column, and a user may ask for any number of them.

kube-scheduler alone decides on further ones.
"""


class ShareTable(ABC):
    """A table of nodes x resources.

    Parameters
    ----------
    levels : the cluster's levels, top first.
    """

    def __init__(self, levels: Sequence[Level] = DEFAULT_LEVELS) -> None:
        self.columns: dict[str, int] = {SHARES: 0}
        self.names: list[str] = []
        self.rows: dict[str, int] = {}
        self.masks = NodeMasks()
        self.topology = Topology(levels)
        self.others: dict[str, Others] = {}
        """The unmanaged pods, by node."""
        nothing = np.zeros((0, 1), dtype=np.int64)
        self.capacity: Matrix = nothing
        self.foreign: Matrix = nothing
        self.now = AllocationTable(nothing, nothing, self.masks.usable())
        self.empty = AllocationTable(nothing, nothing, self.masks.present())
        self.emptiness = Emptiness(self.now)
        self.emptiness_when_empty = Emptiness(self.empty)
        self.version = 0
        """Increases with every change of what is free now."""
        self._standing: list[tuple[Path, int]] = []
        self._vacant: list[int] = []
        self.claims: Counter[str] = Counter()
        """How often claims for one pod are in use, by jobs and by unmanaged pods."""
        self._are_claims_known = False
        self._ports: list[str] = []
        self._exclusive_on: dict[int, dict[str, int]] = {}
        self._vectors: dict[Bundle, Vector] = {}

    # --- what the bookings add -------------------------------------------------------------------

    @abstractmethod
    def _is_in_use(self, row: int) -> bool:
        """Return whether a row without a node still has bookings."""

    @abstractmethod
    def _widen(self, columns: int) -> None:
        """Note that a resource has got a column."""

    @abstractmethod
    def _plan_again(self) -> None:
        """Rebuild the plan after nodes have changed."""

    # --- nodes and resources ---------------------------------------------------------------------

    def set_node(
        self, fact: NodeFact, foreign: Mapping[str, int], others: Others | None = None
    ) -> None:
        """Add or update one node.

        Parameters
        ----------
        fact
            The node's capacity, labels, taints and condition.
        foreign
            What unmanaged pods use on the node, in base units.
        others
            The namespaces of these pods and what the permanent ones use.
        """
        apart = {name: amount for name, amount in foreign.items() if is_exclusive(name)}
        for name in (*fact.capacity, *foreign):
            if name not in apart:
                self.column(name)
        row = self._row(fact.name)
        if apart or row in self._exclusive_on:
            self._note_exclusive(row, apart)
        self.others[fact.name] = others or Others()
        self.masks.set(row, fact)
        self.topology.set(row, fact)
        self._standing[row] = self.topology.path_of(fact.labels), row
        capacity = np.zeros(len(self.columns), dtype=np.int64)
        used = np.zeros(len(self.columns), dtype=np.int64)
        capacity[0] = SHARES_TOTAL
        for name, amount in fact.capacity.items():
            capacity[self.columns[name]] = amount
        for name in self._ports:
            capacity[self.columns[name]] = implied_capacity(name)
        for name, amount in foreign.items():
            if name in self.columns:
                used[self.columns[name]] = amount
        self._set_row(row, capacity, used)

    def _note_exclusive(self, row: int, used: dict[str, int]) -> None:
        """Note which ports and claims unmanaged pods use on a row.

        A port gets a column only if a job asks for it, so other jobs pay nothing for it.
        """
        before = self._exclusive_on.pop(row, {})
        if used:
            self._exclusive_on[row] = used
        self._count_claims((name for name in before if name.startswith(ONE_POD_CLAIM)), -1)
        self._count_claims((name for name in used if name.startswith(ONE_POD_CLAIM)), 1)

    def _count_claims(self, names: Iterable[str], sign: int) -> None:
        for name in names:
            self.claims[name] += sign
            if not self.claims[name]:
                del self.claims[name]

    def remove_node(self, name: str) -> None:
        """Remove a node. Bookings on it stay known until their allocations end."""
        row = self.rows.get(name)
        if row is None:
            return
        self.others.pop(name, None)
        self._note_exclusive(row, {})
        self.masks.clear(row)
        self.topology.set(row, None)
        nothing = np.zeros(len(self.columns), dtype=np.int64)
        self._set_row(row, nothing, nothing)
        self._vacate(row)

    def _set_row(self, row: int, capacity: Vector, foreign: Vector) -> None:
        # Add the difference: what is booked on the row stays subtracted.
        self.now.free[row] += (capacity - foreign) - (self.capacity[row] - self.foreign[row])
        self.capacity[row], self.foreign[row] = capacity, foreign
        self.have_changed([row])
        self.empty.log.append(row)
        self.empty.shorten()
        self._plan_again()

    def _vacate(self, row: int) -> None:
        """Make a row reusable if it has neither a node nor bookings."""
        name = self.names[row]
        if self.masks.facts[row] is None and name in self.rows and not self._is_in_use(row):
            del self.rows[name]
            heapq.heappush(self._vacant, row)

    def add_rows(self, names: Sequence[str]) -> None:
        """Make rows for unknown nodes. Loading many at once enlarges the arrays only once."""
        new = [name for name in dict.fromkeys(names) if name not in self.rows]
        self._make_room(len(new))
        for name in new:
            self._row(name)

    def _row(self, name: str) -> int:
        row = self.rows.get(name)
        if row is None:
            self._make_room(1)
            row = heapq.heappop(self._vacant)
            self.names[row] = name
            self.rows[name] = row
        return row

    def _make_room(self, wanted: int) -> None:
        if len(self._vacant) >= wanted:
            return
        size = len(self.names)
        more = max(wanted - len(self._vacant), ROWS_STEP if size else 1, size // 8)
        for row in range(size, size + more):
            heapq.heappush(self._vacant, row)
        self.names += [""] * more
        self._standing += [((), row) for row in range(size, size + more)]
        self.masks.grow(size + more)
        self.topology.grow(size + more)
        self._resize()

    def column(self, name: str) -> int:
        """Return the column of a resource. An unknown resource gets a new column."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = len(self.columns)
            self._vectors.clear()
            self._widen(len(self.columns))
            self._resize()
            if implied := implied_capacity(name):
                self._open_port(name, column, implied)
        return column

    def counts(self, name: str) -> bool:
        """Return whether the amounts of a slot with this name are compared with those of nodes.

        A port gets its column here. Claims are counted for the cluster, and not by node.
        """
        if not is_exclusive(name):
            return True
        if name in self.columns:
            return True
        if not implied_capacity(name) or len(self._ports) >= PORTS_MAX:
            return False
        self.column(name)
        return True

    def _open_port(self, name: str, column: int, implied: int) -> None:
        """Give each node a port for which a job asks for the first time."""
        self._ports.append(name)
        self.capacity[self.masks.present(), column] = implied
        for row, used in self._exclusive_on.items():
            self.foreign[row, column] = used.get(name, 0)
        self.now.free[:, column] = self.capacity[:, column] - self.foreign[:, column]
        self._plan_again()

    def _resize(self) -> None:
        shape = (len(self.names), len(self.columns))
        self.capacity, self.foreign = _enlarge(self.capacity, shape), _enlarge(self.foreign, shape)
        self.now.replace(_enlarge(self.now.free, shape), self.capacity, self.masks.usable())
        self.empty.replace(self.capacity, self.capacity, self.masks.present())
        self.version += 1

    def have_changed(self, rows: Sequence[int]) -> None:
        """Note that what is free on these rows has changed."""
        self.version += 1
        self.now.log.extend(rows)
        self.now.shorten()

    def standing(self, row: int) -> tuple[Path, int]:
        """Return the position of a row in the whole topology. Slots are numbered in this order."""
        return self._standing[row]

    # --- arrays ----------------------------------------------------------------------------------

    def vector(self, needs: Bundle) -> Vector:
        """Return what a slot takes as a row: one share of its node, and its resources."""
        known = self._vectors.get(needs)
        if known is not None:
            return known
        self._are_claims_known |= any(name.startswith(ONE_POD_CLAIM) for name, _ in needs)
        # New resources add columns, so this must come before the vector gets its size.
        wanted = {
            self.column(name): amount for name, amount in needs if amount and self.counts(name)
        }
        found = np.zeros(len(self.columns), dtype=np.int64)
        found[0] = 1
        found[list(wanted)] = list(wanted.values())
        if len(self._vectors) >= VECTORS_MAX:
            self._vectors.clear()
        self._vectors[needs] = found
        return found

    def compile(self, placement: Placement) -> Hold:
        """Return a placement as arrays."""
        # Most slots share one tuple, and identity is quicker to compare than contents.
        kinds = {id(slot.resources): slot.resources for slot in placement.slots}
        for needs in kinds.values():
            # New resources add columns, which must exist before anything is counted.
            self.vector(needs)
        rows, takes = self._compile(placement, is_one_kind=len(kinds) == 1)
        start = placement.starts_at if placement.kept_from is None else placement.kept_from
        hold = Hold(rows, takes, start, placement.until, limit=placement.limit)
        if not self._are_claims_known:
            return hold
        claims = tuple(
            dict.fromkeys(
                name
                for needs in kinds.values()
                for name, _ in needs
                if name.startswith(ONE_POD_CLAIM)
            )
        )
        return replace(hold, claims=claims) if claims else hold

    def _compile(self, placement: Placement, *, is_one_kind: bool) -> tuple[Vector, Matrix]:
        """Return the rows of a placement, and what it takes on each."""
        if len(placement.slots) == 1 and not placement.held:
            (one,) = placement.slots
            row = self._row(one.node)
            takes = self.vector(one.resources)[None, :]
            if placement.is_exclusive:
                takes = takes.copy()
                takes[0, 0] = SHARES_TOTAL
            return np.array((row,)), takes
        if is_one_kind and not placement.held:
            return self._compile_equal(placement)
        return self._compile_many(placement)

    def _compile_equal(self, placement: Placement) -> tuple[Vector, Matrix]:
        counts = Counter(slot.node for slot in placement.slots)
        self.add_rows([*counts])
        of_row = {self.rows[node]: count for node, count in counts.items()}
        index = np.array(sorted(of_row), dtype=np.int64)
        slots = np.array([of_row[row] for row in index.tolist()], dtype=np.int64)
        takes = slots[:, None] * self.vector(placement.slots[0].resources)
        if placement.is_exclusive:
            takes[:, 0] = SHARES_TOTAL
        return index, takes

    def _compile_many(self, placement: Placement) -> tuple[Vector, Matrix]:
        counts: dict[int, dict[Bundle, int]] = {}
        self.add_rows([*placement.nodes, *placement.held])
        for slot in placement.slots:
            kinds = counts.setdefault(self.rows[slot.node], {})
            kinds[slot.resources] = kinds.get(slot.resources, 0) + 1
        whole = {self.rows[name] for name in placement.held}
        if placement.is_exclusive:
            whole.update(counts)
        rows = sorted(counts.keys() | whole)
        takes = np.zeros((len(rows), len(self.columns)), dtype=np.int64)
        for at, row in enumerate(rows):
            for needs, count in counts.get(row, {}).items():
                takes[at] += self.vector(needs) * count
            if row in whole:
                takes[at, 0] = SHARES_TOTAL
        return np.array(rows, dtype=np.int64), takes


def _enlarge(matrix: Matrix, shape: tuple[int, int]) -> Matrix:
    """Return a larger matrix with contiguous columns, because counting goes column by column."""
    found = np.zeros(shape, dtype=np.int64, order="F")
    found[: matrix.shape[0], : matrix.shape[1]] = matrix
    return found
