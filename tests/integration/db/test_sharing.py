"""Sharing policies in cycles over rows: what starts beside unmanaged pods, what waits, and why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.db.store.cluster_rows import save_foreign
from fluxqueue.db.store.rule_rows import RuleRowKind, RuleSeen, read_stored_rules, save_rules
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from fluxqueue.policy.sharing import Grant
from fluxqueue.policy.sharing import rules as sharing_rules
from fluxqueue.scheduler.node_sharing import Excess, PolicyFigures, Violation
from tests.support.packages import install_into
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, workload

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "night-policy"
HOUR_S, DAY_S = 3600, 86_400


def theirs(name: str, cpu: int, node: str = "n0", *, lasts: bool = False) -> ForeignPod:
    return ForeignPod(f"u-{name}", "theirs", name, node, {CPU: cpu}, is_permanent=lasts)


@dataclass
class Sharing:
    """Policies and unmanaged pods over rows, as the controller would write them."""

    rows: Rows
    generation: int = 0

    async def policy(self, name: str, fault: str | None = None, **spec: Any) -> None:
        """Write a policy."""
        self.generation += 1
        seen = RuleSeen(name, f"uid-{name}", self.generation, spec, fault)
        async with self.rows.database.begin() as tx:
            await save_rules(tx, RuleRowKind.SHARING, [seen], ())

    async def drop(self, name: str) -> None:
        """Delete a policy."""
        async with self.rows.database.begin() as tx:
            await save_rules(tx, RuleRowKind.SHARING, [], [name])

    async def pods(self, *present: ForeignPod, gone: tuple[str, ...] = ()) -> None:
        """Write unmanaged pods."""
        async with self.rows.database.begin() as tx:
            await save_foreign(tx, present, [f"u-{name}" for name in gone])

    async def figures(self, name: str) -> PolicyFigures:
        """What the matcher counts of a policy."""
        assert self.rows.matcher is not None
        found = await self.rows.matcher.sharing_figures()
        assert found is not None
        return found[0].get(name, PolicyFigures())

    async def reason(self, uid: str) -> str:
        """Why a job waits."""
        return str(await self.rows.value("SELECT reason FROM fluxjobs WHERE uid = :u", u=uid))


@pytest.fixture
def sharing(rows: Rows) -> Sharing:
    return Sharing(rows)


async def test_the_picture_of_kubeflux(sharing: Sharing) -> None:
    """A node of 16: ours 8, theirs 8, ours waits, theirs ends, ours starts."""
    rows = sharing.rows
    await sharing.policy("all", policy="subtract")
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await rows.see(workload("first", request(cpu=8)))
    await rows.match()
    await sharing.pods(theirs("web", 8))
    await rows.see(workload("second", request(cpu=8)))
    await rows.match()
    assert await rows.states() == {"first": "Allocated", "second": "Pending"}
    assert "waits for n0 held by job 1" in await sharing.reason("second")
    await sharing.pods(gone=("web",))
    await rows.match()
    assert await rows.states() == {"first": "Allocated", "second": "Allocated"}
    await rows.check()


async def test_a_partition_is_the_most_that_jobs_get(sharing: Sharing) -> None:
    """Half of a node stays with the others even while it is idle. What never fits says why."""
    rows = sharing.rows
    await sharing.policy("half", policy="partition", partition={"cpu": "50%"})
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await rows.see(
        workload("a", request(cpu=8)),
        workload("b", request(cpu=1)),
        workload("c", request(cpu=9)),
        workload("d", request(3, cpu=4)),
    )
    await rows.match()
    assert await rows.states() == {
        "a": "Allocated",
        "b": "Pending",
        "c": "Unsatisfiable",
        "d": "Unsatisfiable",
    }
    assert await sharing.reason("c") == (
        "needs 0.009 cpu on one node; 1 node may give jobs 0.008 cpu, by sharing policy half"
        " (gives jobs 50% of cpu)"
    )
    words = "because sharing policy half gives jobs less than all"
    assert words in await sharing.reason("d")
    await sharing.drop("half")
    await rows.match()
    assert (await rows.states()) == {
        "a": "Allocated",
        "b": "Allocated",
        "c": "Pending",
        "d": "Pending",
    }
    await rows.check()


async def test_a_changed_policy_evicts_nothing_and_names_what_exceeds_it(sharing: Sharing) -> None:
    rows = sharing.rows
    await rows.add_nodes(cpu_node("n0", cpu=16), cpu_node("n1", cpu=16))
    await rows.see(workload("a", request(2, cpu=16)), workload("b", request(cpu=4)))
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    await sharing.policy(
        "head",
        policy="headroom",
        headroom={"cpu": "25%"},
        nodeSelector={"matchLabels": {"kubernetes.io/hostname": "n1"}},
    )
    await rows.match()
    assert (await rows.states())["a"] == "Allocated"
    found = await sharing.figures("head")
    assert (found.nodes, found.given, found.exceeded) == (1, {CPU: 12}, 1)
    assert found.exceeding == [Excess("n1", {CPU: 16}, {CPU: 12}, ("a",))]
    await sharing.drop("head")
    await rows.match()
    assert (await sharing.figures("head")).exceeded == 0
    await rows.check()


async def test_unmanaged_pods_violate_a_dedicated_node(sharing: Sharing) -> None:
    """DaemonSets belong to the node. Nothing is evicted, and the room of the others is not used."""
    rows = sharing.rows
    await sharing.policy("ours", policy="dedicated")
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await sharing.pods(theirs("web", 8), theirs("agent", 1, lasts=True))
    await rows.see(workload("a", request(cpu=8)), workload("b", request(cpu=16)))
    await rows.match()
    assert (await rows.states())["a"] == "Pending"
    assert "DaemonSets and static pods" in await sharing.reason("b")
    found = await sharing.figures("ours")
    assert (found.violations, found.violating) == (1, [Violation("theirs/web", "n0")])
    await sharing.pods(gone=("web",))
    await rows.match()
    assert (await rows.states())["a"] == "Allocated"
    assert (await sharing.figures("ours")).violations == 0


async def test_the_lowest_order_counts_for_a_node(sharing: Sharing) -> None:
    """A node that changes its labels changes its policy."""
    rows = sharing.rows
    hpc = {"matchLabels": {"pool": "hpc"}}
    await sharing.policy("all", policy="partition", partition={"cpu": 2}, order=10)
    await sharing.policy("hpc", policy="subtract", order=1, nodeSelector=hpc)
    node = cpu_node("n0", cpu=16000)
    await rows.add_nodes(node)
    await rows.see(workload("a", request(cpu=16000)))
    await rows.match()
    assert await rows.states() == {"a": "Unsatisfiable"}
    labels = {**node.labels, "pool": "hpc"}
    await rows.add_nodes(cpu_node("n0", cpu=16000).__class__("n0", "u", {CPU: 16000}, labels))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    assert [(await sharing.figures(one)).nodes for one in ("all", "hpc")] == [0, 1]


async def test_a_policy_of_another_package_gives_nodes_at_night(
    sharing: Sharing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/examples/night-policy, installed by pip. The worker asks again when the night begins."""
    monkeypatch.syspath_prepend(str(install_into(EXAMPLE, tmp_path / "site")))
    rows, clock = sharing.rows, ManualClock(20_000 * DAY_S + 19 * HOUR_S)
    rows.clock = clock
    await sharing.policy("n", policy="nights", parameters={"from": 20, "to": 6})
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await rows.see(workload("a", request(cpu=8)))
    await rows.match()
    assert await rows.states() == {"a": "Pending"}
    assert await sharing.reason("a") == (
        "sharing policy n (gives nodes to jobs from 20:00 to 6:00 UTC) leaves too little room on"
        " n0 now"
    )
    assert rows.matcher is not None
    clock.advance(HOUR_S - 1)
    await rows.match()
    assert await rows.states() == {"a": "Pending"}
    clock.advance(2)
    assert rows.matcher.is_due
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    clock.advance(10 * HOUR_S)
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}, "by day it goes on"
    assert (await sharing.figures("n")).exceeding == [Excess("n0", {CPU: 8}, {CPU: 0}, ("a",))]


class Broken:
    """A policy that fails when it is asked."""

    def grant(self, *_: Any) -> Grant:
        raise RuntimeError("of another package")


async def test_a_bad_policy_stops_no_cycle(
    sharing: Sharing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set aside with its reason. The next one counts, and all nodes are used."""
    rows = sharing.rows
    monkeypatch.setitem(sharing_rules.BUILT_IN, "broken", lambda _: Broken())  # type: ignore[arg-type]
    await sharing.policy("a-broken", policy="broken")
    await sharing.policy("b-unread", policy="of-another-release")
    await sharing.policy("c-good", policy="partition", partition={"cpu": "50%"})
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await rows.see(workload("a", request(cpu=8)), workload("b", request(cpu=8)))
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    assert (await sharing.figures("a-broken")).fault == (
        "it fails on node n0: RuntimeError: of another package"
    )
    assert "no installed sharing policy" in str((await sharing.figures("b-unread")).fault)
    good = await sharing.figures("c-good")
    assert (good.nodes, good.fault) == (1, None)


@pytest.mark.parametrize(
    "spec", ["null", "5", '"text"', "[]", '{"policy": {}}', '{"policy": "headroom", "headroom": 1}']
)
async def test_a_damaged_row_stops_no_cycle(sharing: Sharing, spec: str) -> None:
    rows = sharing.rows
    await rows.execute(
        "INSERT INTO rules (kind, name, uid, spec)"
        " VALUES ('sharing', 'bad', 'u', CAST(:spec AS jsonb))",
        spec=spec,
    )
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await rows.see(workload("a", request(cpu=8)))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}


async def test_damaged_amounts_of_pods_under_a_policy(sharing: Sharing) -> None:
    """Their node is left out, as it is without a policy. The others are used."""
    rows = sharing.rows
    await sharing.policy("all", policy="subtract")
    await rows.add_nodes(cpu_node("n0", cpu=16), cpu_node("n1", cpu=8))
    for number, value in enumerate(('{"cpu": "x"}', "null", '{"cpu": -1}', '{"cpu": 1.5}')):
        await rows.execute(
            "INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)"
            " VALUES (:uid, 'x', 'x', 'n0', CAST(:value AS jsonb))",
            uid=str(number),
            value=value,
        )
    await rows.see(workload("a", request(cpu=8)))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    assert (await rows.slots("a"))[0][1] == "n1"


async def test_the_former_spec_stays_in_force(sharing: Sharing) -> None:
    """Of the same object. One that is made anew without a valid spec has none."""
    rows = sharing.rows
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await sharing.policy("p", policy="partition", partition={"cpu": "50%"})
    await sharing.policy("p", "no such policy", policy="x")
    await rows.see(workload("a", request(cpu=9)))
    await rows.match()
    assert await rows.states() == {"a": "Unsatisfiable"}
    async with rows.database.begin() as tx:
        (stored,) = await read_stored_rules(tx, RuleRowKind.SHARING)
    assert (stored.generation, stored.fault) == (2, "no such policy")
    async with rows.database.begin() as tx:
        await save_rules(
            tx, RuleRowKind.SHARING, [RuleSeen("p", "other", 1, {}, "no such policy")], ()
        )
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}


async def test_unmanaged_pods_are_seen_though_no_job_waits(sharing: Sharing) -> None:
    """A cycle is woken for the figures, because changes of such pods alone wake none."""
    rows = sharing.rows
    await sharing.policy("ours", policy="dedicated")
    await rows.add_nodes(cpu_node("n0", cpu=16))
    await rows.match()
    await rows.forget_tasks()
    await sharing.pods(theirs("web", 8))
    assert not await rows.is_cycle_asked()
    assert (await sharing.figures("ours")).violations == 0
    assert await rows.is_cycle_asked()
    await rows.match()
    assert (await sharing.figures("ours")).violations == 1
