"""One row that a step of the worker cannot take: all others go on, and it is reported."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.db.store import desired_state, matcher_rows, reconciling
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.process import metrics
from fluxqueue.worker import reconcile_pods, release, status
from localcluster import LocalCluster
from tests.support.poison import EXCEPTIONS, NAMES
from tests.support.rows import Rows, cpu_node
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import is_released, rows_of, submit, ungated_to, worker

HUGE = 2**63 - 1


STEPS: dict[str, tuple[Any, str]] = {
    "what follows is decided": (reconciling, "_follow"),
    "what follows is noted": (reconciling, "_note_effects"),
    "what its object is to be": (desired_state, "_desired"),
    "its object is released": (release, "_make"),
    "its pods are let go": (reconcile_pods, "_ungate"),
    "its status is written": (status, "_put"),
}
"""Each step of a task that looks at one row by itself, and where it stands."""


class Poisoned:
    """Raises for some workloads, by the UIDs that ``of`` maps to names of exceptions."""

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self.met: set[str] = set()
        self.is_on = True

    def around(self, step: Any) -> Any:
        """``step``, raising where an argument is of one of them."""

        def raising(*given: Any, **named: Any) -> Any:
            for one in given:
                uid = _uid(one)
                if self.is_on and uid in self.of:
                    self.met.add(uid)
                    raise EXCEPTIONS[self.of[uid]]()
            return step(*given, **named)

        return raising


def _uid(one: Any) -> str:
    if isinstance(one, dict):
        return str(one.get("uid"))
    return str(getattr(one, "workload_uid", None) or getattr(one, "uid", None))


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("step", STEPS)
async def test_all_others_go_on(
    database_url: str,
    cluster: LocalCluster,
    admin: KubeClient,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """In one batch with the poisoned ones. Those are reported, and done as soon as they can be."""
    where, attribute = STEPS[step]
    poison = Poisoned()
    monkeypatch.setattr(where, attribute, poison.around(getattr(where, attribute)))
    async with rows_of(database_url) as rows:
        await rows.add_nodes(*(cpu_node(f"n{n}", cpu=4) for n in range(4)))
        for name in NAMES:
            poison.of[await submit(rows, admin, name, pods=1)] = name
        for name in ("good-a", "good-b"):
            await submit(rows, admin, name, pods=1)
        async with worker(database_url, cluster):

            async def are_on(*names: str) -> bool:
                return all(
                    [
                        await is_released(admin, name)
                        and await ungated_to(admin, f"{name}-0") is not None
                        for name in names
                    ]
                )

            await eventually(lambda: are_on("good-a", "good-b"), "the good ones run")
            await submit(rows, admin, "later", pods=1)
            await eventually(lambda: are_on("later"), "one that came later runs")

            async def are_told() -> bool:
                sql = "SELECT uid FROM quarantine WHERE held_by = 'stalled'"
                said = {row["uid"] for row in await dicts(rows.database, sql)}
                return bool(poison.met) and poison.met <= said

            if step != "its status is written":  # it has no FluxJob object here
                await eventually(are_told, "the poisoned ones are told")
            poison.is_on = False
            await eventually(lambda: are_on(*NAMES), "they are done")

            await until(
                lambda: rows.value("SELECT count(*) FROM quarantine"),
                lambda found: found == 0,
                "and told no more",
            )


async def _starts(rows: Rows, admin: KubeClient, cluster: LocalCluster, url: str) -> None:
    await submit(rows, admin, "good")
    async with worker(url, cluster):
        await eventually(lambda: is_released(admin, "good"), "it starts")


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize(
    "fact",
    [
        '{"name": "n-bad"}',
        '{"name": "n-bad", "uid": "u", "capacity": {"cpu": "many"}}',
        '{"name": "n-bad", "uid": "u", "capacity": {"cpu": 9223372036854775807}}',
        '{"name": "n-bad", "uid": "u", "capacity": {"cpu": 99999999999999999999}}',
        '{"name": "n-bad", "uid": "u", "capacity": {"cpu": 4}, "taints": [["a"]]}',
        '{"name": "n-bad", "uid": "u", "capacity": {"cpu": 4}, "labels": {"topology": 7}}',
        "[]",
    ],
)
async def test_a_node_that_the_matcher_cannot_read(
    database_url: str, cluster: LocalCluster, admin: KubeClient, fact: str
) -> None:
    """Nothing is placed there, and everything elsewhere."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(cpu_node("n0", cpu=4))
        await rows.execute(
            "INSERT INTO nodes (name, fact) VALUES ('n-bad', CAST(:fact AS jsonb))", fact=fact
        )
        await _starts(rows, admin, cluster, database_url)


async def test_a_node_that_no_ledger_can_hold(
    database_url: str,
    cluster: LocalCluster,
    admin: KubeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is raised."""
    read = matcher_rows._set_node
    raised = iter([*EXCEPTIONS.values()] * 9)

    def raising(ledger: Any, fact: NodeFact, *others: Any) -> None:
        if fact.name.startswith("bad"):
            raise next(raised)()
        read(ledger, fact, *others)

    monkeypatch.setattr(matcher_rows, "_set_node", raising)
    before = metrics.ROWS_SKIPPED.labels("node")._value.get()
    async with rows_of(database_url) as rows:
        bad = [cpu_node(f"bad{number}", cpu=99) for number in range(len(EXCEPTIONS))]
        await rows.add_nodes(cpu_node("n0", cpu=4), *bad)
        await _starts(rows, admin, cluster, database_url)
    assert metrics.ROWS_SKIPPED.labels("node")._value.get() >= before + len(EXCEPTIONS)


async def test_pods_of_others_that_ask_for_all_numbers_there_are(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """Any user may name a node on a pod: their sum is more than a number of Postgres can be."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(cpu_node("n0", cpu=4), cpu_node("n1", cpu=4))
        for number in range(3):
            await rows.execute(
                "INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)"
                " VALUES (:uid, 'x', 'x', 'n0', jsonb_build_object('cpu', CAST(:huge AS bigint)))",
                uid=f"u{number}",
                huge=HUGE,
            )
        await _starts(rows, admin, cluster, database_url)
        nodes = await dicts(rows.database, "SELECT node FROM allocation_slots")
        assert {row["node"] for row in nodes} == {"n1"}
