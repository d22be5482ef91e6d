"""The matcher of the queue: nodes, what is booked on them, and where a request fits.

Created by the worker, the simulator and ``explain``. ``MatcherVerbs`` has the operations that
Fluxion's matcher on a graph of vertices (``fluxion.matcher``) shares. Fluxion's two
outcomes are two *different* exceptions: ``InsufficientResources`` (EBUSY) and ``Unsatisfiable``
(ENODEV). Time is an argument in integer seconds, including ``now``. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.placement import Others, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.graph.match.shares.ask import Ask
from fluxqueue.jobspec.bounds import Work
from fluxqueue.jobspec.model import Jobspec


class Answers(Protocol):
    """Answers for now, later and ever: from shares of nodes, or from a graph of vertices."""

    def match_now(self, request: Jobspec, now: int) -> Placement: ...

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement: ...

    def is_satisfiable(self, request: Jobspec) -> bool: ...

    def match_more(
        self,
        request: Jobspec,
        nodes: Sequence[str],
        now: int,
        until: int,
        *,
        avoid: Collection[str] = (),
    ) -> Placement: ...


class Ledger(Protocol):
    """What is booked under keys, and what is reserved. Times are integer seconds.

    There are two ledgers because requests are served in two ways. ``graph.ledger.shares`` keeps
    rows of nodes x resources with the ends of running work. ``fluxion.ledger.vertices`` keeps spans
    of whole vertices by block. The queue has the rows alone. In Fluxion's matcher, a cluster's
    graph has both: the vertices lead and the rows follow. docs/developer/matcher.md says why
    neither can replace the other. ``MatcherVerbs`` describes the operations.
    """

    def book(self, key: str, placement: Placement) -> None: ...

    def extend(self, key: str, placement: Placement) -> None: ...

    def cancel(self, key: str) -> bool: ...

    def reserve(self, placement: Placement, now: int) -> None: ...

    def unreserve(self, placement: Placement) -> None: ...

    def clear_plan(self) -> None: ...

    def trying(self) -> AbstractContextManager[None]: ...

    def look(self, now: int) -> None: ...


class FurtherNodes(Protocol):
    """Nodes that the graph does not contain, because they do not exist yet."""

    def could_hold(self, request: Jobspec, work: Work | None) -> bool: ...


class MatcherVerbs:
    """The operations of both matchers.

    Parameters: ``answers`` finds places, ``booked`` keeps what is booked there.
    """

    def __init__(self, answers: Answers, booked: Ledger) -> None:
        self._answers, self._booked = answers, booked

    # --- now, later, ever: nothing is booked -----------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """Place the whole request now, without delaying any reservation.

        Raises
        ------
        InsufficientResources
            Some of it does not fit now. Ask ``is_satisfiable`` whether it ever can.
        """
        return self._answers.match_now(request, now)

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """Find the earliest start after ``now`` that running work and reservations allow.

        It is not before ``not_before``, which must itself be a time at which something ends.

        Raises
        ------
        InsufficientResources
            Even when all running work has ended, the request does not fit.
        """
        return self._answers.match_later(request, now, not_before=not_before)

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Return whether the empty graph could hold it, including all that is down or cordoned."""
        return self._answers.is_satisfiable(request)

    def match_more(
        self,
        request: Jobspec,
        nodes: Sequence[str],
        now: int,
        until: int,
        *,
        avoid: Collection[str] = (),
    ) -> Placement:
        """Place one more slot of the last kind, bound as its siblings are.

        ``nodes`` has the node of each sibling. The slot stands in the same places of each level. It
        gets a node of its own if each sibling has one. Nodes in ``avoid`` are used only if no other
        node fits.

        Raises
        ------
        InsufficientResources
            It does not fit now.
        """
        return self._answers.match_more(request, nodes, now, until, avoid=avoid)

    # --- bookings --------------------------------------------------------------------------------

    def allocate(self, job: int | str, placement: Placement) -> None:
        """Book what was found for ``job``, in place of what it had."""
        self._booked.book(str(job), placement)

    def extend(self, job: int | str, placement: Placement) -> None:
        """Book more for ``job``. All that it has then lasts as long as the new part."""
        self._booked.extend(str(job), placement)

    def shrink(self, job: int | str, placement: Placement) -> None:
        """Leave only ``placement`` of what ``job`` has."""
        self._booked.book(str(job), placement)

    def cancel(self, job: int | str) -> bool:
        """Give back all that ``job`` has. Return False if it had nothing.

        Raises
        ------
        InvalidInput
            On a graph of vertices: the job holds nothing.
        """
        return self._booked.cancel(str(job))

    def reserve(self, placement: Placement, now: int) -> None:
        """Reserve ``placement``: later matches cannot delay it."""
        self._booked.reserve(placement, now)

    def unreserve(self, placement: Placement) -> None:
        """Remove a reservation. It must be the very object that was reserved."""
        self._booked.unreserve(placement)

    def clear_plan(self) -> None:
        """Remove all reservations.

        Every cycle makes a new plan (flux-sched's qmanager does the same).
        """
        self._booked.clear_plan()

    def trying(self) -> AbstractContextManager[None]:
        """Allow reservations inside the context and forget them afterwards."""
        return self._booked.trying()

    def look(self, now: int) -> None:
        """Move the time on. Work past its end is planned to end later, in growing steps."""
        self._booked.look(now)


class Matcher(MatcherVerbs):
    """The matcher of the queue: nodes, of which jobs get shares, and a default policy.

    Parameters
    ----------
    ledger : the nodes and what is booked on them.
    policy : the policy of requests that name none.
    """

    def __init__(self, ledger: ShareLedger, policy: str | Policy = "first") -> None:
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self.ledger, self.by_shares = ledger, ByShares(ledger, self.policy)
        self.further: FurtherNodes | None = None
        """Nodes that node pools could bring. None: there are no pools."""
        super().__init__(self.by_shares, ledger)

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Return whether the empty graph could hold it, or the nodes that may still come."""
        if self.by_shares.is_satisfiable(request):
            return True
        return self.further is not None and self.further.could_hold(request, self.work)

    def working(self, work: Work) -> AbstractContextManager[None]:
        """Limit all questions inside the context to ``work`` together.

        Questions beyond the limit raise ``TooComplex``. Nothing has been booked by the question
        then.
        """
        return self.by_shares.working(work)

    @property
    def work(self) -> Work | None:
        """Return what the present question may cost."""
        return self.by_shares.work

    def ask(self, request: Jobspec) -> Ask:
        """Return the request as the table reads it. Equal results have equal answers."""
        return self.by_shares.ask(request)

    # --- changes of the graph --------------------------------------------------------------------

    def set_node(
        self, fact: NodeFact, foreign: Mapping[str, int], others: Others | None = None
    ) -> None:
        """Add or update a node: its size, status, cordon, and use by unmanaged pods.

        ``foreign`` is in base units.
        """
        self.ledger.set_node(fact, foreign, others)

    def remove_node(self, name: str) -> None:
        """Remove a node. Bookings on it stay known until their allocations end."""
        self.ledger.remove_node(name)
