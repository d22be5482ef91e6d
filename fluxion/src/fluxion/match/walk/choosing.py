"""Choices of a walk: the best candidates for each need, and the marks that they leave.

A vertex chooses among its named children if they suffice. The root chooses among all candidates
that reach it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxion.match.compiled_request import Need
from fluxion.match.walk.candidates import (
    Candidates,
    Found,
    WalkCandidate,
    score_of,
    units_of,
)
from fluxion.match.walk.scoring import Scoring


class Choosing(Scoring):
    """The part of the walk that chooses and marks."""

    def _choose(self, needs: Sequence[Need], found: Found) -> bool:
        """Choose the best candidates for every need. Return False if one cannot be met."""
        for need in needs:
            candidates = found.get(need.kind)
            count = need.count.largest_within(candidates.total if candidates else 0)
            if not count or candidates is None:
                return False
            if self.policy.occupancy and need.kind != self._node:
                self._choose_by_occupancy(candidates, count)
            elif self.policy.stops_early and self.is_cluster:
                self._choose_first(candidates, count)
            else:
                candidates.choose(count, self.policy.is_high)
        return True

    def _choose_first(self, candidates: Candidates, wanted: int) -> None:
        """Choose for ``first`` on a cluster.

        Look at nodes until there is enough: untouched ones before others, then by most free cpu.
        Then take the highest ids seen.
        """
        by_block = self._by_block(candidates)
        if by_block is None:
            candidates.choose(wanted, self.policy.is_high)  # These are racks.
            return
        seen: list[list[WalkCandidate]] = []
        total = 0
        for members in sorted(by_block, key=lambda one: self._first_key(one[0].edges[0][0])):
            if total >= wanted:
                break
            seen.append(members)
            total += units_of(members)
        graph = self.graph
        seen.sort(
            key=lambda one: graph.id[graph.blocks[graph.block_of[one[0].edges[0][0]]].base],
            reverse=True,
        )
        chosen: list[WalkCandidate] = []
        for member in (one for members in seen for one in members):
            if wanted <= units_of(chosen):
                break
            chosen.append(member)
        self._put_first(candidates, chosen, wanted)

    def _by_block(self, candidates: Candidates) -> list[list[WalkCandidate]] | None:
        """Return the candidates by node, best first, or None if one is not part of a node."""
        block_of = self.graph.block_of
        found: dict[int, list[WalkCandidate]] = {}
        for member in candidates.members:
            blocks = {block_of[v] for v, _ in member.edges}
            if len(blocks) != 1 or -1 in blocks:
                return None
            found.setdefault(blocks.pop(), []).append(member)
        return [sorted(members, key=score_of) for members in found.values()]

    def _put_first(self, candidates: Candidates, chosen: list[WalkCandidate], wanted: int) -> None:
        taken = set(map(id, chosen))
        rest = [one for one in candidates.members if id(one) not in taken]
        candidates.members = [*chosen, *rest]
        candidates.wanted, candidates.chosen = wanted, len(chosen)

    def _choose_by_occupancy(self, candidates: Candidates, wanted: int) -> None:
        """Choose slots, or other things inside nodes, node by node.

        ``pack``: the fullest node that holds the rest, else the one with most capacity. ``spread``:
        one to each node in rounds, the emptiest node first.
        """
        by_block = self._by_block(candidates)
        if by_block is None:
            # These are racks, or slots of several nodes.
            candidates.choose(wanted, self.policy.is_high)
            return
        left = sorted(
            by_block,
            key=lambda members: self._emptiness_after(members[0].edges[0][0], members[:1]),
        )
        chosen: list[WalkCandidate] = []
        rest = wanted
        if self.policy.occupancy < 0:
            rounds = max(map(len, left))
            in_turn = [one[i] for i in range(rounds) for one in left if i < len(one)]
            left = [in_turn]
        while rest > 0:
            fitting = next((one for one in left if units_of(one) >= rest), None)
            # max keeps the first of equals: the fullest of those with most capacity.
            members = max(left, key=units_of) if fitting is None else fitting
            left.remove(members)
            for member in members:
                if rest > 0:
                    chosen.append(member)
                    rest -= member.count
        self._put_first(candidates, chosen, wanted)

    def _mark(self, chooser: int, found: Found) -> None:
        parent = self.graph.parent
        for kind in sorted(found):
            candidates = found[kind]
            self._take_shares(kind, candidates)
            for candidate in candidates.members[: candidates.chosen]:
                for v, is_exclusive in candidate.edges:
                    self.marks[v] = is_exclusive and kind not in self._pools
                    # A slot may lie one unnamed level lower (node -> slot -> core on a graph with
                    # sockets). Fluxion finds it there and then cannot book it. Here that level is
                    # shared.
                    above = parent[v]
                    while above != chooser:
                        self.marks.setdefault(above, False)
                        above = parent[above]

    def _take_shares(self, kind: int, candidates: Candidates) -> None:
        """Record what the chosen candidates take of consumable pools."""
        if not self._pools:
            return
        left = candidates.wanted
        for candidate in candidates.members[: candidates.chosen]:
            for v, units in candidate.shares:
                self.shares[v] = self.shares.get(v, 0) + units
            if kind in self._pools:
                v, is_exclusive = candidate.edges[0]
                if is_exclusive:
                    self.shares[v] = self.shares.get(v, 0) + min(left, candidate.count)
                left -= candidate.count

    def _choose_at_top(self, needs: Sequence[Need], found: Found, root_count: int) -> bool:
        if not self._choose(needs, found):
            return False
        kinds, parent = self.graph.type_of, self.graph.parent
        for need in needs:
            if need.kind == kinds[0] and not need.count.largest_within(root_count):
                return False
        # Levels that the request passed through are shared, up to the root.
        for kind in sorted(found):
            candidates = found[kind]
            self._take_shares(kind, candidates)
            for candidate in candidates.members[: candidates.chosen]:
                if candidate.is_root:
                    continue
                for v, is_exclusive in candidate.edges:
                    self.marks[v] = is_exclusive and kind not in self._pools
                    above = parent[v]
                    while above > 0 and above not in self.marks:
                        same = found.get(kinds[above])
                        if same is not None and not same.chosen:
                            self.marks[above] = False
                        above = parent[above]
        return True
