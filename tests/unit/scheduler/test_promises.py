"""The ledger of promises: what is promised once, and what is blamed."""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.promises import ANOTHER, AWAY, BARRED, Mishaps, Promises
from tests.support.pool_model import placement, request

JOB = PendingJob("u", 1, 0, request(cpu=1))
NOTHING = Mishaps()


def planned(at: int | None, job: PendingJob = JOB) -> Decisions:
    """A cycle that reserves ``at``, or gives no start."""
    if at is None:
        return Decisions(waiting=[(job, "busy")])
    return Decisions(reserved=[(job, placement(("n0", {"cpu": 1}), starts_at=at))])


def test_the_first_start_is_the_promise() -> None:
    """Earlier plans do not replace it. Nothing is news twice."""
    ledger = Promises()
    new = ledger.take_in([JOB], planned(100), now=0, mishaps=NOTHING)
    assert new["u"].starts_at == 100
    assert not ledger.take_in([JOB], planned(80), now=10, mishaps=NOTHING)
    assert ledger.kept["u"].starts_at == 100
    assert ledger.kept["u"].excuse is None


def test_the_first_mishap_is_the_excuse() -> None:
    """Overruns before nodes, in words. What comes later changes nothing."""
    ledger = Promises()
    ledger.take_in([JOB], planned(100), now=0, mishaps=NOTHING)
    mishaps = Mishaps(overran=[5, 6, 7, 8], lost=["n1", "n2"])
    late = ledger.take_in([JOB], planned(160), now=100, mishaps=mishaps)
    assert late["u"].excuse == "overrun of job 5, job 6, job 7 and 1 more"
    lost = Mishaps(lost=["n2", "n1"])
    assert not ledger.take_in([JOB], planned(None), now=110, mishaps=lost)
    assert lost.excuse() == "less capacity on n[1-2]"
    damaged = Mishaps(lost=["", "a b", "n1", "\r"])
    assert damaged.excuse() == "less capacity on n1", "a damaged row may name what is no node"
    assert Mishaps(lost=["\r"]).excuse() == "less capacity on nodes without a valid name"


def test_without_a_mishap_there_is_no_excuse() -> None:
    """A plan that falls behind for no reason is a broken promise: it must show."""
    ledger = Promises()
    ledger.take_in([JOB], planned(100), now=0, mishaps=NOTHING)
    assert not ledger.take_in([JOB], planned(101), now=10, mishaps=NOTHING)
    assert ledger.kept["u"].excuse is None


def test_limits_changes_and_absence_void_a_promise() -> None:
    """Each with its words."""
    for decisions, queue, excuse in [
        (replace(planned(None), barred={"u"}), [JOB], BARRED),
        (planned(None), [replace(JOB, request=request(cpu=2))], ANOTHER),
        (Decisions(), [], AWAY),
    ]:
        ledger = Promises()
        ledger.take_in([JOB], planned(100), now=0, mishaps=NOTHING)
        assert ledger.take_in(queue, decisions, now=1, mishaps=NOTHING)["u"].excuse == excuse
    assert not ledger.kept, "who is away is promised anew when it is back"


def test_what_became_of_a_promise_is_counted_once() -> None:
    """In time, late without a reason, late with one. A job without a promise is not counted."""
    ledger = Promises()
    for at, excuse, outcome in ((105, None, "kept"), (106, None, "broken"), (106, "x", "excused")):
        ledger.take_in([JOB], planned(100), now=0, mishaps=NOTHING)
        ledger.kept["u"].excuse = excuse
        assert ledger.settle("u", at) == outcome
        assert ledger.settle("u", at) is None
