"""FluxReservations between a served API and rows: validated, obeyed, excused, and their status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.rule_watch import RESERVATIONS, RuleWatch
from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_nodes
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.rule_rows import RuleRowKind, save_rules
from fluxqueue.errors import Invalid
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUX_RESERVATIONS
from fluxqueue.policy.calendar.reservation import read_reservation
from fluxqueue.worker.calendar_keeping import CalendarKeeper
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload

pytestmark = pytest.mark.usefixtures("definitions")

AT = {"start": "2027-03-02T18:00"}
VALID: tuple[dict[str, Any], ...] = (
    {"nodes": ["n1"], "schedule": AT},
    {"nodes": ["rack[1-4]", "n1"], "schedule": {**AT, "duration": "4h"}, "why": "cooling"},
    {"nodeSelector": {}, "schedule": {**AT, "end": "2027-03-02T20:00"}},
    {"nodes": ["n1"], "schedule": {**AT, "duration": "1h", "rrule": "FREQ=WEEKLY;BYDAY=TU"}},
)
INVALID: tuple[dict[str, Any], ...] = (
    {},
    {"nodes": ["n1"]},
    {"schedule": AT},
    {"nodes": [], "schedule": AT},
    {"nodes": ["n1"], "nodeSelector": {}, "schedule": AT},
    {"nodes": ["n1"], "schedule": {**AT, "rrule": "FREQ=DAILY"}},
    {"nodes": ["n1"], "schedule": {**AT, "end": "2027-03-02T20:00", "duration": "1h"}},
    {"nodes": ["n1"], "schedule": AT, "why": "x" * 201},
)


def body(name: str, **spec: Any) -> dict[str, Any]:
    """A FluxReservation as applied."""
    kind = {"apiVersion": FLUX_RESERVATIONS.api_version, "kind": FLUX_RESERVATIONS.kind}
    return {**kind, "metadata": {"name": name}, "spec": spec}


async def test_what_the_definition_accepts_our_reader_accepts(admin: KubeClient) -> None:
    for number, spec in enumerate(VALID):
        made = await admin.create(FLUX_RESERVATIONS, None, body(f"valid-{number}", **spec))
        read_reservation("r", made["spec"])
        assert made["spec"]["schedule"]["timeZone"] == "UTC"
    for number, spec in enumerate(INVALID):
        with pytest.raises(Invalid):
            await admin.create(FLUX_RESERVATIONS, None, body(f"invalid-{number}", **spec))


class Served:
    """One reservation that is served, and the rows of a cluster of two nodes of four cores."""

    def __init__(self, admin: KubeClient, rows: Rows, clock: ManualClock) -> None:
        self.admin, self.rows, self.clock = admin, rows, clock
        self.watch = RuleWatch(admin, lambda _: None, clock, RESERVATIONS)

    async def reserve(
        self, in_s: int, for_s: int, *, name: str = "cooling", node: str = "n0"
    ) -> None:
        """Make a reservation that begins in a while, and let the controller write it."""
        start = datetime.fromtimestamp(self.clock.now_s() + in_s, UTC).replace(tzinfo=None)
        schedule = {"start": start.isoformat(), "duration": f"{for_s}s"}
        made = await self.admin.create(
            FLUX_RESERVATIONS, None, body(name, nodes=[node], schedule=schedule)
        )
        self.watch.objects.observe(made)
        await self._write(name)

    async def _write(self, name: str) -> None:
        async with self.rows.database.begin() as tx:
            await save_rules(tx, RuleRowKind.RESERVATION, *self.watch.see([name]))

    async def submit(self, uid: str, duration_s: int, *, slots: int = 1) -> None:
        """A job of whole nodes, and a cycle."""
        asked = request(slots, duration_s=duration_s, is_spread=True, cpu=4000)
        async with self.rows.database.begin() as tx:
            await save_workloads(tx, [workload(uid, asked)])
        await self.rows.match()

    async def status(self, name: str = "cooling") -> dict[str, Any]:
        """Its status after a turn of the keeper."""
        assert self.rows.matcher is not None
        context = replace(self.rows.context(), client=self.admin)
        await CalendarKeeper(context, self.rows.matcher).turn()
        found = (await self.admin.get(FLUX_RESERVATIONS, None, name))["status"]
        found["conditions"] = {one["type"]: one["status"] for one in found["conditions"]}
        return dict(found)

    async def reason(self, uid: str) -> str:
        (row,) = await self.rows.fetch("SELECT reason FROM fluxjobs WHERE uid = :uid", uid=uid)
        return str(row["reason"])


@pytest_asyncio.fixture
async def served(admin: KubeClient, database_url: str) -> AsyncIterator[Served]:
    """A cluster of two nodes, matched by hand at a time that stands still."""
    clock, settings = ManualClock(), settings_for(database_url)
    async with Database(settings, role="test") as database:
        rows = Rows(database, clock, settings)
        await rows.begin_term()
        async with database.begin() as tx:
            await save_nodes(tx, [cpu_node("n0", cpu=4000), cpu_node("n1", cpu=4000)], ())
        await rows.match()
        yield Served(admin, rows, clock)


async def test_no_limit_reaches_into_it_and_the_next_cycle_after_it_starts_what_waits(
    served: Served,
) -> None:
    await served.reserve(in_s=600, for_s=300)
    await served.submit("pair", 601, slots=2)
    assert (await served.rows.states())["pair"] == "Reserved"
    assert "would run into maintenance cooling on n0" in await served.reason("pair")
    await served.submit("short", 600)
    await served.submit("beside", 3000)
    states = await served.rows.states()
    # The promise of the pair keeps its nodes free from 900 s on.
    assert (states["short"], states["beside"]) == ("Allocated", "Pending")
    served.clock.advance(900)
    assert served.rows.matcher is not None
    assert served.rows.matcher.is_due, "its end wakes the matcher"


async def test_a_worker_that_starts_during_an_occurrence_closes_the_nodes(served: Served) -> None:
    """It keeps nothing in memory: the second one knows as much."""
    await served.reserve(in_s=10, for_s=300)
    served.clock.advance(20)
    await served.rows.begin_term()
    await served.submit("pair", 10, slots=2)
    assert "maintenance cooling until" in await served.reason("pair")
    served.clock.advance(290)
    await served.rows.match()
    assert (await served.rows.states())["pair"] == "Allocated"


async def test_the_status_says_when_where_and_who_is_still_there(served: Served) -> None:
    await served.submit("pair", 1000, slots=2)
    await served.reserve(in_s=600, for_s=300)
    await served.rows.match()
    found = await served.status()
    assert (found["nodes"], found["nodeList"], found["jobs"]) == (1, "n0", 1)
    assert found["jobNames"] == ["default/pair"]
    assert found["conditions"] == {
        "Valid": "True", "Planned": "True", "Active": "False", "Empty": "False",
    }  # fmt: skip
    served.clock.advance(600)
    await served.rows.match()
    assert (await served.status())["conditions"]["Active"] == "True"
    served.clock.advance(300)
    await served.rows.match()
    over = await served.status()
    assert over["conditions"]["Planned"] == "False"
    assert "start" not in over


async def test_nodes_that_are_not_there_close_nothing_and_the_status_says_so(
    served: Served,
) -> None:
    await served.reserve(in_s=0, for_s=300, node="n9")
    await served.submit("pair", 10, slots=2)
    assert (await served.rows.states())["pair"] == "Allocated"
    assert (await served.status())["conditions"]["Planned"] == "False"


async def test_a_promise_that_it_moves_is_excused_by_its_name(served: Served) -> None:
    await served.submit("now", 100, slots=2)
    await served.submit("later", 500, slots=2)
    await served.reserve(in_s=300, for_s=1000)
    await served.rows.match()
    found = await served.rows.fetch(
        "SELECT detail FROM history WHERE uid = 'later' AND event = 'PromiseExcused'"
    )
    assert [row["detail"]["excuse"] for row in found] == ["maintenance cooling"]
