"""A place in the order does not outlive what it was given to (``32_place.sql``)."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.observation import WorkloadSeen
from tests.support import steering
from tests.support.asked import Slots
from tests.support.asked import asked as slots
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, workload

SMALL = request(2, cpu=2, duration_s=600)


async def order(rows: Rows) -> list[str]:
    """The jobs in their order."""
    return [row["uid"] for row in await rows.fetch("SELECT uid FROM fluxjobs ORDER BY place")]


async def edited(rows: Rows, before: WorkloadSeen, after: WorkloadSeen) -> list[str]:
    """The order after job ``a``, the first, was changed."""
    await rows.see(before, workload("b", SMALL))
    await rows.see(after)
    return await order(rows)


@pytest.mark.parametrize(
    "after",
    [
        request(3, cpu=2, duration_s=600),
        request(2, cpu=3, duration_s=600),
        request(2, cpu=2, duration_s=601),
        request(2, cpu=2, duration_s=None),
        request(2, cpu=2, memory=1, duration_s=600),
        request(2, cpu=2, duration_s=600, is_exclusive=True),
        request(2, cpu=2, duration_s=600, is_spread=True),
        request(2, cpu=2, duration_s=600, within="rack"),
        slots([Slots(1, (("cpu", 2),)), Slots(2, (("cpu", 2),))], duration_s=600),
    ],
)
async def test_what_asks_for_more_goes_behind(rows: Rows, after: object) -> None:
    """More pods, more of a resource, more time, or another shape."""
    seen = workload("a", after)  # type: ignore[arg-type]
    assert await edited(rows, workload("a", SMALL), seen) == ["b", "a"]


@pytest.mark.parametrize(
    "after",
    [
        request(1, cpu=2, duration_s=600),
        request(2, cpu=1, duration_s=600),
        request(2, cpu=2, duration_s=60),
    ],
)
async def test_what_asks_for_less_keeps_its_place(rows: Rows, after: object) -> None:
    """Fewer pods, less of a resource, less time."""
    seen = workload("a", after)  # type: ignore[arg-type]
    assert await edited(rows, workload("a", SMALL), seen) == ["a", "b"]
    # What was given up and is asked for again is more.
    await rows.see(workload("a", SMALL))
    assert await order(rows) == ["b", "a"]


@pytest.mark.parametrize(
    "held",
    [
        {"held_by": "author", "has_hold": True},
        {"held_by": "author"},
        {"is_paused": True},
        {"begin_at_s": 4_000_000_000},
        {"missing": 1},
        {"depends_on": ({"type": "afterok", "job": "nobody"},)},
    ],
)
async def test_what_its_author_held_goes_behind(rows: Rows, held: dict[str, object]) -> None:
    """By an annotation, suspended, paused, with a begin time, incomplete, or behind a job."""
    before = workload("a", SMALL, **held)
    after = workload("a", SMALL, generation=5)
    await edited(rows, before, after)
    await rows.reconcile("a")  # what it depends on is looked at
    assert await order(rows) == ["b", "a"]


async def test_who_held_it_makes_no_difference(rows: Rows) -> None:
    """An account of one's own is easily made. A number of its own stays the job's."""
    await rows.see(workload("a", SMALL), workload("b", SMALL))
    await steering.hold(rows.database, "default", ["a"], "another")
    await steering.release(rows.database, "default", ["a"], "another")
    assert await order(rows) == ["b", "a"]
    assert await rows.value("SELECT jobid FROM fluxjobs WHERE uid = 'a'") == 1


async def test_what_no_node_held_goes_behind_if_its_author_mends_it(rows: Rows) -> None:
    """If nodes come, it keeps its place: it did not change."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    large = request(1, cpu=2, duration_s=600)
    await rows.see(workload("a", large), workload("b", SMALL), workload("c", large))
    await rows.match()
    assert set((await rows.states()).values()) == {"Unsatisfiable"}
    await rows.see(workload("a", request(1, cpu=1, duration_s=600)))
    await rows.add_nodes(*(cpu_node(f"n{n}", is_up=False) for n in (1, 2)))
    await rows.match()
    assert await order(rows) == ["b", "c", "a"]


async def test_growth_of_what_runs_is_a_request_of_now(rows: Rows) -> None:
    """Running, it takes a new place. Requeued, it waits there."""
    await rows.add_nodes(cpu_node("n0", cpu=4), cpu_node("n1", cpu=4))
    await rows.see(workload("a", SMALL))
    await rows.match()
    await rows.see(workload("b", SMALL))
    before = await rows.value("SELECT place FROM fluxjobs WHERE uid = 'a'")
    grown = but(workload("a", request(3, cpu=2, duration_s=600)), is_suspended=False)
    await rows.see(grown)
    after = await rows.value("SELECT place FROM fluxjobs WHERE uid = 'a'")
    await rows.see(grown)
    assert before == 1
    assert after > await rows.value("SELECT place FROM fluxjobs WHERE uid = 'b'")
    assert after == await rows.value("SELECT place FROM fluxjobs WHERE uid = 'a'")
