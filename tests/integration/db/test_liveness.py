"""When each loop last succeeded: what the rows say of it, and what a check finds late."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.db.database import Database
from fluxqueue.db.liveness import EVERY_S, LATE_S, Liveness
from fluxqueue.db.reading.snapshot import LoopRow, read_rows
from fluxqueue.errors import LostLeadership
from fluxqueue.process import metrics


@dataclass
class Process:
    """A process with one loop, on a clock that only tests move."""

    database: Database
    clock: ManualClock = field(default_factory=ManualClock)
    loops: Liveness = field(init=False)

    def __post_init__(self) -> None:
        """Nothing runs yet."""
        self.loops = Liveness(self.clock, "test")

    async def after(self, seconds: float) -> LoopRow:
        """What a check reads of the loop, so much later. Time passes in the rows as well."""
        self.clock.advance(seconds)
        await self.database.execute(
            "UPDATE loops SET began_at = began_at - make_interval(secs => :s),"
            " succeeded_at = succeeded_at - make_interval(secs => :s),"
            " failed_at = failed_at - make_interval(secs => :s)",
            s=seconds,
        )
        await self.loops.write(self.database)
        (row,) = (await read_rows(self.database)).loops
        return row

    def is_late(self, row: LoopRow) -> bool:
        """As the check says it."""
        return row.silent_s > row.patience_s


@pytest.fixture
def process(database: Database) -> Process:
    """On a database of its own."""
    return Process(database)


async def test_a_loop_that_waits_for_work_succeeds(process: Process) -> None:
    """However long there is nothing to do."""
    process.loops.expect("cycle")
    row = await process.after(9 * LATE_S)
    assert (row.silent_s, row.error, process.is_late(row)) == (0, None, False)


async def test_a_loop_that_fails_becomes_late_with_its_last_error(process: Process) -> None:
    """And is forgiven with its next success."""
    process.loops.expect("cycle")
    await process.after(1)
    for number in range(3):
        with pytest.raises(ZeroDivisionError), process.loops.turn("cycle"):
            raise ZeroDivisionError(f"number {number}")
        row = await process.after(LATE_S / 2)
    assert process.is_late(row)
    assert row.error == "number 2"
    with process.loops.turn("cycle"):
        pass
    row = await process.after(1)
    assert (process.is_late(row), row.error) == (False, None)


async def test_a_loop_that_hangs_becomes_late(process: Process) -> None:
    """It has begun and says nothing."""
    process.loops.expect("status")
    await process.after(1)
    process.loops.begin("status")
    assert not process.is_late(await process.after(LATE_S - 5))
    assert process.is_late(await process.after(10))


async def test_a_periodic_loop_has_to_be_run(process: Process) -> None:
    """That nothing fails is not enough."""
    process.loops.expect("sweep", is_periodic=True, patience_s=60)
    process.loops.succeed("sweep")
    assert not process.is_late(await process.after(50))
    assert process.is_late(await process.after(50))


async def test_a_process_that_dies_leaves_its_loops_late(process: Process) -> None:
    """No process writes any more."""
    process.loops.expect("cycle")
    await process.after(1)
    process.loops.forget("cycle")
    assert process.is_late(await process.after(2 * LATE_S))


async def test_a_role_that_another_holds_now_is_no_failure(process: Process) -> None:
    """The next holder does the work."""
    process.loops.expect("queues")
    with pytest.raises(LostLeadership), process.loops.turn("queues"):
        raise LostLeadership("term 4 is over")
    row = await process.after(1)
    assert (row.error, process.is_late(row)) == (None, False)


async def test_the_success_of_one_worker_is_that_of_the_loop(process: Process) -> None:
    """Of several that run it the last success counts, whichever writes last."""
    other = Process(process.database)
    process.loops.expect("release")
    other.loops.expect("release")
    other.loops.fail("release", "no right\nto do it")
    await process.after(10)
    row = await other.after(10)
    assert not process.is_late(row)
    assert row.error == "no right"
    assert (await process.after(1)).error is None


async def test_the_metric(process: Process) -> None:
    """Shown while the loop runs in this process, and no longer."""
    process.loops.expect("observe")
    await process.after(5)
    shown = metrics.LAST_SUCCESS.labels("observe")._value.get()
    assert shown == pytest.approx(process.clock.now_s(), abs=1)
    process.loops.forget("observe")
    assert b'loop="observe"' not in metrics.render()


def test_the_times_are_written_rarely() -> None:
    """No more than four statements a minute for all loops of a process."""
    assert EVERY_S >= 10
