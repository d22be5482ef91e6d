"""Named queues in rows: heads, limits, refusals, priorities and shares, on a real Postgres."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.store.matcher_rows import load_graph
from fluxqueue.db.store.moves import recompute_priorities
from fluxqueue.db.store.queue_snapshot import QueueHead, _head_values
from fluxqueue.db.store.queues import QueueSeen, read_figures, read_rules
from fluxqueue.errors import LostLeadership
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.policy.fair_share import decayed_use
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.worker import schedule
from fluxqueue.worker.queue_keeping import QueueKeeper
from fluxqueue.worker.schedule import ROLE
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload
from tests.support.seen import job, queue, see_queues, told


async def priority(rows: Rows, uid: str) -> int:
    """The effective one."""
    return int(await rows.value("SELECT priority FROM fluxjobs WHERE uid = :uid", uid=uid))


async def test_the_default_queue_is_in_a_new_database(rows: Rows) -> None:
    """And nothing takes it away."""
    async with rows.database.begin() as tx:
        assert await read_rules(tx) == {"default": QueueRules("default")}
    await see_queues(rows, gone=("default",))
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}


async def test_an_unknown_queue_holds_until_it_is_made(rows: Rows) -> None:
    """Held, not lost. Taken in without an edit. Held again when the queue goes."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(job("a", "gpu"))
    await rows.match()
    state, reason = await told(rows, "a")
    assert (state, reason.split(";")[0]) == ("Held", "fluxqueue/queue: there is no FluxQueue 'gpu'")
    assert await rows.value("SELECT held_by FROM fluxjobs") == "queue"
    await see_queues(rows, queue("gpu", started=False))
    assert await rows.is_cycle_asked()
    await rows.match()
    assert await told(rows, "a") == ("Pending", "queue gpu is stopped")
    await see_queues(rows, gone=("gpu",))
    await rows.match()
    assert (await told(rows, "a"))[0] == "Held"
    await see_queues(rows, queue("gpu"))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await see_queues(rows, gone=("gpu",))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}, "what runs goes on"
    await rows.check()


async def test_a_move_is_another_submission(rows: Rows) -> None:
    """Out of a queue that refused it. Into one that takes nothing it is refused again."""
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(rows, queue("open"), queue("closed", enabled=False))
    await rows.see(job("a", "nowhere"), job("b", "closed"))
    await rows.match()
    assert await rows.states() == {"a": "Held", "b": "Held"}
    await rows.see(job("a", "closed"), job("b", "open"))
    await rows.match()
    assert await rows.states() == {"a": "Held", "b": "Allocated"}
    assert "spec.enabled is false" in (await told(rows, "a"))[1]


async def test_a_disabled_queue_keeps_what_it_has(rows: Rows) -> None:
    """Only what comes later is refused, also after a change of the job that was there."""
    await see_queues(rows, queue("q"))
    await rows.see(job("a", "q"))
    await rows.add_nodes(cpu_node("n0", is_up=False))
    await rows.match()
    await see_queues(rows, queue("q", enabled=False))
    await rows.see(job("b", "q"), job("a", "q", priority=3))
    await rows.match()
    states = await rows.states()
    assert states["a"] in {"Pending", "Reserved"}
    assert states["b"] == "Held"
    await see_queues(rows, queue("q"))
    await rows.match()
    assert (await rows.states())["b"] in {"Pending", "Reserved"}


@pytest.mark.parametrize(
    ("spec", "namespaces", "words"),
    [
        ({"limits": {"perJob": {"cpu": "3m"}}}, None, "spec.limits.perJob.cpu is 0.003 cpu"),
        ({"limits": {"perJob": {"durationSeconds": 59}}}, None, "perJob.durationSeconds is 59"),
        ({}, ["other"], "spec.allowedNamespaces does not have namespace 'default'"),
    ],
)
async def test_what_a_queue_refuses_it_takes_when_it_is_changed(
    rows: Rows, spec: dict[str, Any], namespaces: list[str] | None, words: str
) -> None:
    """Held with field and value, and the reverse, when the change forbids what waited."""
    await rows.add_nodes(cpu_node("n0", cpu=4), cpu_node("n1", cpu=4, is_up=False))
    await see_queues(rows, queue("q", namespaces=namespaces, **spec))
    asked = request(2, cpu=4, duration_s=60, is_spread=True)
    await rows.see(job("a", "q", asked))
    await rows.match()
    state, reason = await told(rows, "a")
    assert state == "Held"
    assert words in reason
    await see_queues(rows, queue("q"))
    await rows.match()
    assert (await rows.states())["a"] in {"Pending", "Reserved"}
    await see_queues(rows, queue("q", namespaces=namespaces, **spec))
    await rows.match()
    assert (await told(rows, "a"))[0] == "Held"
    await rows.check()


async def test_limits_on_what_runs_name_value_and_use(rows: Rows) -> None:
    """Counted from the allocations, user by user. An end lets the next one start."""
    await rows.add_nodes(cpu_node("n0", cpu=20))
    await see_queues(rows, queue("q", limits={"perUser": {"jobs": 2}, "total": {"cpu": "5m"}}))
    users = ("alice", "alice", "alice", "bob", "bob", "carol")
    await rows.see(
        *(
            job(f"j{n}", "q", request(cpu=1 if n < 3 else 2, duration_s=60), user_name=user)
            for n, user in enumerate(users)
        )
    )
    await rows.match()
    states = await rows.states()
    assert [states[f"j{n}"] for n in range(6)] == [
        "Allocated", "Allocated", "Pending", "Allocated", "Pending", "Pending",
    ]  # fmt: skip
    assert "perUser.jobs is 2, user alice has 2" in (await told(rows, "j2"))[1]
    assert "total.cpu is 0.005 cpu, queue q has 0.004 cpu" in (await told(rows, "j4"))[1]
    await rows.see(job("j0", "q", user_name="alice", wanted=0, result="Completed"))
    await rows.reconcile("j0")
    await rows.match()
    assert (await rows.states())["j2"] == "Allocated"
    await rows.check()


async def test_a_job_counts_until_its_last_slot_is_returned(rows: Rows) -> None:
    """And a node that two jobs share counts for each of them."""
    await rows.add_nodes(cpu_node("n0", cpu=20))
    await see_queues(rows, queue("q", limits={"perUser": {"jobs": 2}, "total": {"nodes": 2}}))
    first = job("a", "q", request(2, cpu=1, duration_s=60), user_name="alice")
    await rows.see(first, job("a2", "q", user_name="alice"))
    await rows.match()
    pods = tuple(pod(f"a{n}", "Running", is_gated=False, node="n0") for n in range(2))
    await rows.see(but(first, pods=pods, is_suspended=False))
    await rows.reconcile("a")
    await rows.see(but(first, pods=pods[:1], wanted=1, is_suspended=False))
    await rows.reconcile("a")
    assert [slot[2] for slot in await rows.slots("a")].count("returned") == 1
    await rows.see(job("carol", "q", user_name="carol"), job("b", "q", user_name="alice"))
    await rows.match()
    assert "perUser.jobs is 2, user alice has 2" in (await told(rows, "b"))[1]
    assert "total.nodes is 2, queue q has 2" in (await told(rows, "carol"))[1]
    await rows.see(but(first, wanted=0, result="Completed"))
    await rows.reconcile("a")
    await rows.match()
    assert (await rows.states())["carol"] == "Allocated"


async def test_use_is_read_of_queues_with_limits_only(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    async def read(tx: Transaction, queues: list[str]) -> dict[tuple[str, str], Amounts]:
        asked.append(sorted(queues))
        return {}

    monkeypatch.setattr(schedule, "read_use", read)
    names = ("perUser", "total", "perJob")
    limited = [queue(name, limits={name: {"cpu": 9}}) for name in names]
    await see_queues(rows, queue("none"), *limited)
    await rows.see(job("a", "none"))
    await rows.match()
    assert asked == [["perUser", "total"]]


async def test_the_head_of_a_deep_queue_is_found_by_index(rows: Rows) -> None:
    """Hundreds of jobs behind it make the next cycle no dearer."""
    await rows.add_nodes(cpu_node("n0", is_up=False))
    await see_queues(rows, queue("q", queueDepth=3), queue("other"))
    await rows.see(*(job(f"q{n}", "q", priority=n % 7) for n in range(400)))
    await rows.match()
    await rows.execute("ANALYZE fluxjobs")
    head = _head_values(QueueHead(depth=3, examined_max=1, have_nodes_changed=False))
    found = await rows.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {Q.queue_head}", **head)
    (nodes,) = [_flat(plan["Plan"]) for plan in found[0]["QUERY PLAN"]]
    assert "Sort" not in {node["Node Type"] for node in nodes}
    scans = [node for node in nodes if node.get("Index Name") == "ix_fluxjobs_waiting"]
    assert [node["Actual Rows"] * node["Actual Loops"] for node in scans] == [3]


def _flat(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for one in plan.get("Plans", ()) for node in _flat(one))]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"perJob": {"cpu": "4m"}}, "perJob.cpu is 0.004 cpu, it has 0.004 cpu"),
        ({"perUser": {"cpu": "5m"}}, "perUser.cpu is 0.005 cpu, user alice has 0.005 cpu"),
        ({"total": {"cpu": "7m"}}, "total.cpu is 0.007 cpu, queue q has 0.007 cpu"),
    ],
)
async def test_what_runs_grows_within_the_limits_of_its_queue(
    rows: Rows, limits: dict[str, Any], words: str
) -> None:
    """A job that starts small must not grow to what it could not have been given at once."""
    await rows.add_nodes(cpu_node("n0", cpu=20))
    await see_queues(rows, queue("q", limits=limits))
    small = job("a", "q", request(2, cpu=1), user_name="alice")
    other = job("b", "q", request(cpu=2), user_name="bob")
    third = job("c", "q", request(cpu=1), user_name="alice")
    await rows.see(small, other, third)
    await rows.match()
    assert set((await rows.states()).values()) == {"Allocated"}
    pods = tuple(pod(f"p{n}") for n in range(5))
    await rows.see(but(small, wanted=5, pods=pods))
    await rows.reconcile("a")
    await rows.match()
    await rows.reconcile("a")
    await rows.match()
    assert len(await rows.slots("a")) == 4
    assert words in (await told(rows, "a"))[1]
    await rows.check()


async def test_a_user_at_a_limit_does_not_hide_the_others(rows: Rows) -> None:
    """Far more jobs of one user than a cycle looks at, and another user's behind them."""
    rows.settings = replace(rows.settings, queue_depth=5)
    await rows.add_nodes(cpu_node("n0", cpu=20))
    await see_queues(rows, queue("q", limits={"perUser": {"jobs": 1}}))
    await rows.see(*(job(f"a{n:02}", "q", user_name="alice") for n in range(30)))
    await rows.see(*(job(f"b{n:02}", "q", user_name="bob") for n in range(30)))
    await rows.see(job("c", "q", user_name="carol"))
    await rows.match()
    states = await rows.states()
    started = sorted(uid for uid, state in states.items() if state == "Allocated")
    assert started == ["a00", "b00", "c"]
    await rows.see(job("a99", "q", user_name="alice"))
    await rows.match()
    assert "perUser.jobs is 1, user alice has 1" in (await told(rows, "a99"))[1]


async def test_each_queue_is_seen_to_its_own_depth(rows: Rows) -> None:
    """A queue full of what cannot start hides nothing of another, whatever their priorities."""
    rows.settings = replace(rows.settings, queue_depth=3)
    await rows.add_nodes(cpu_node("n0", cpu=4), cpu_node("n1", cpu=4, is_up=False))
    await see_queues(rows, queue("wide", priority=100), queue("narrow", queueDepth=1))
    big = request(2, cpu=4, duration_s=60, is_spread=True)
    await rows.see(*(job(f"w{n}", "wide", big) for n in range(30)))
    await rows.see(*(job(f"n{n}", "narrow") for n in range(6)))
    await rows.match()
    states = await rows.states()
    assert [states[f"n{n}"] for n in range(6)] == ["Allocated"] * 4 + ["Reserved", "Pending"]
    words = (await told(rows, "w29"))[1]
    assert words in {"", "priority 100 behind about 30 jobs"}, "too far back to be looked at"


async def test_priority_is_bounded_and_its_parts_are_stored(rows: Rows) -> None:
    """Any write: insert, another wish, an operator, the queue, a move."""
    await see_queues(rows, queue("q", priority=100, minPriority=-5, maxPriority=10))
    await rows.see(job("a", "q", priority=50), job("b", "q", priority=-50), workload("c"))
    assert [await priority(rows, uid) for uid in "abc"] == [110, 95, 0]
    parts = await rows.value("SELECT priority_parts FROM fluxjobs WHERE uid = 'a'")
    assert parts == {"asked": 50, "bounded": 10, "queue": 100, "fairShare": 0}
    await rows.see(job("a", "q", priority=7))
    assert await priority(rows, "a") == 107
    await rows.execute("UPDATE fluxjobs SET overrides = '{\"priority\": 9}' WHERE uid = 'a'")
    assert await priority(rows, "a") == 109
    await rows.execute(
        "UPDATE fluxjobs SET overrides = overrides || '{\"queue\": \"default\"}', queue = 'default'"
    )
    assert [await priority(rows, uid) for uid in "abc"] == [9, -50, 0]
    await rows.execute("UPDATE fluxjobs SET priority = 12345 WHERE uid = 'a'")
    assert await priority(rows, "a") == 9, "nobody writes the sum by hand"


async def test_a_changed_queue_orders_anew_what_waits(rows: Rows) -> None:
    """By the next cycle, touching only rows with another priority."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await see_queues(rows, queue("a"), queue("b"))
    await rows.see(workload("run", request(cpu=1)), job("x", "a"), job("y", "b"))
    await rows.match()
    await see_queues(rows, queue("b", priority=5))
    async with rows.database.begin() as tx:
        assert await recompute_priorities(tx, ["a", "b"]) == 1, "y alone"
    await rows.match()
    assert (await priority(rows, "x"), await priority(rows, "y")) == (0, 5)
    async with rows.database.begin() as tx:
        assert await recompute_priorities(tx, ["a", "b"]) == 0
    await rows.see(workload("run", request(cpu=1), wanted=0, result="Completed"))
    await rows.reconcile("run")
    await rows.match()
    assert (await rows.states())["y"] == "Allocated"


async def test_the_largest_numbers_are_added(rows: Rows) -> None:
    """At an end at which all are equal, the priority of the queue would not count."""
    await see_queues(rows, queue("q", priority=1_000_000_000))
    await rows.see(job("a", "q", priority=2**31 - 1), job("b", "q", priority=-(2**31) + 1))
    assert await priority(rows, "a") == 2**31 - 1 + 1_000_000_000
    assert await priority(rows, "b") == -(2**31) + 1 + 1_000_000_000


async def test_users_only_lower_what_they_write_themselves(rows: Rows) -> None:
    """A class of an administrator counts, and so do an operator's value and a maxPriority."""
    await see_queues(rows, queue("open", maxPriority=5), queue("floor", minPriority=3), queue("q"))
    own = {"is_priority_granted": False}
    await rows.see(*(job(uid, "q", priority=9, **own) for uid in ("a", "given")))
    await rows.see(job("low", "q", priority=-9, **own), job("class", "q", priority=9))
    await rows.see(job("open", "open", priority=9, **own), job("floor", "floor", priority=9, **own))
    await rows.execute("UPDATE fluxjobs SET overrides = '{\"priority\": 7}' WHERE uid = 'given'")
    found = {uid: await priority(rows, uid) for uid in await rows.states()}
    assert found == {"a": 0, "given": 7, "low": -9, "class": 9, "open": 5, "floor": 3}
    await rows.see(job("a", "q", priority=9))
    assert await priority(rows, "a") == 9


async def test_a_default_duration_is_planned_with(rows: Rows) -> None:
    """Only a duration of its own is a limit. The other is planned, and planned again from rows."""
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(rows, queue("q", defaultDuration="5m"))
    await rows.see(job("a", "q", request(cpu=1)), job("b", "q", request(cpu=1, duration_s=60)))
    await rows.match()
    found = await rows.fetch("SELECT uid, until - starts_at AS s FROM allocations ORDER BY uid")
    assert [(row["uid"], row["s"]) for row in found] == [("a", None), ("b", 60)]
    ledger, now = ShareLedger(), rows.clock.now_s()
    async with rows.database.begin() as tx:
        await load_graph(tx, ledger, rules=await read_rules(tx))
    ends = {uid: (one.until - now, one.is_firm) for uid, one in ledger.live.items()}
    assert ends == {"a": (300, False), "b": (60, True)}


async def test_a_spec_that_cannot_be_used_leaves_the_former_one(rows: Rows) -> None:
    """And its fault is shown. A queue that never had a usable one is not there."""
    await see_queues(rows, queue("q", priority=3))
    bad = QueueSeen("q", "uid-q", 99, {"policy": "lifo"}, None, None, "spec.policy: no")
    await see_queues(rows, bad, replace(bad, name="new"))
    (shown,) = await read_figures(rows.database)
    assert (shown.name, shown.fault, shown.generation) == ("q", "spec.policy: no", 99)
    async with rows.database.begin() as tx:
        rules = await read_rules(tx)
    assert rules["q"].priority == 3
    assert "new" not in rules


async def test_seeing_the_same_again_changes_nothing(rows: Rows) -> None:
    """No cycle is woken for a queue that is as it was."""
    await see_queues(rows, queue("q", priority=3))
    await rows.execute("DELETE FROM graph_changes")
    await see_queues(rows, queue("q", priority=3))
    assert await rows.fetch("SELECT 1 FROM graph_changes") == []


async def test_counts_of_queues(rows: Rows) -> None:
    """Of those that have an object, by state."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    await see_queues(rows, queue("q", limits={"perJob": {"cpu": "2m"}}))
    await rows.see(
        job("run", "q", request(cpu=2)),
        job("wait", "q", request(cpu=2)),
        job("refused", "q", request(cpu=3)),
        job("suspended", "q", held_by="author"),
        workload("elsewhere", request(cpu=9)),
    )
    await rows.match()
    (shown,) = await read_figures(rows.database)
    counts = (shown.pending, shown.running, shown.held, shown.unsatisfiable)
    assert counts == (1, 1, 2, 0)


async def test_fair_share_lowers_who_used_much(rows: Rows) -> None:
    """From the slots held, decayed to now. Only what changes is touched, and it is put in order."""
    await rows.add_nodes(cpu_node("n0", cpu=8000))
    on = {"enabled": True, "halfLife": "1h", "weight": 100}
    await see_queues(rows, queue("q", fairShare=on, defaultDuration="1h"))
    await rows.see(job("run", "q", request(cpu=8000), user_name="alice"))
    await rows.match()
    await rows.see(
        job("a", "q", request(cpu=8000), user_name="alice"),
        job("b", "q", request(cpu=8000), user_name="bob"),
    )
    assert await priority(rows, "b") == 100, "nobody is put back before shares are computed"
    # Half an hour ago by the database's clock.
    await rows.execute("UPDATE allocation_slots SET given_at = now() - interval '30 minutes'")
    keeper = QueueKeeper(rows.context(), ROLE, rows.term)
    assert await keeper.share() == 2
    used = await rows.value("SELECT used FROM fair_shares WHERE user_name = 'alice'")
    assert used == pytest.approx(decayed_use(8, 0, 1800, 1800, 3600), rel=0.01)
    # UE of alice is 1 (she and the queue used all), of bob 1/2. The share of each is 1/2.
    assert (await priority(rows, "a"), await priority(rows, "b")) == (25, 50)
    assert await keeper.share() == 0, "again: nothing has changed"
    await rows.see(job("run", "q", user_name="alice", wanted=0, result="Completed"))
    await rows.reconcile("run")
    await rows.match()
    assert (await rows.states())["b"] == "Allocated", "behind alice by submission, before by share"
    await see_queues(rows, queue("q", defaultDuration="1h"))
    await rows.match()
    assert await priority(rows, "a") == 0, "switched off"
    await keeper.share()
    assert await rows.fetch("SELECT 1 FROM fair_shares") == []


async def test_shares_under_a_lost_term_are_not_stored(rows: Rows) -> None:
    """A paused matcher that wakes up writes no priorities."""
    await rows.begin_term()
    keeper = QueueKeeper(rows.context(), ROLE, rows.term)
    await rows.begin_term()
    with pytest.raises(LostLeadership):
        await keeper.share()


async def test_queues_change_while_cycles_run(rows: Rows) -> None:
    """Rules, moves, shares and cycles at once: no deadlock, and the rows agree at the end."""
    await rows.add_nodes(*(cpu_node(f"n{n}", cpu=4) for n in range(3)))
    names = ("p", "q")
    uids = [f"{n * 7919 % 100:02}" for n in range(40)]
    await see_queues(rows, *(queue(name) for name in names))
    await rows.see(*(job(uid, names[n % 2], user_name=f"u{n % 3}") for n, uid in enumerate(uids)))
    await rows.begin_term()
    keeper = QueueKeeper(rows.context(), ROLE, rows.term)
    before = await rows.value(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )

    async def change() -> None:
        for n in range(10):
            spec: dict[str, Any] = {"priority": n % 3, "limits": {"perUser": {"jobs": 1 + n % 2}}}
            spec |= {"fairShare": {"enabled": n % 2 == 0}}
            await see_queues(rows, queue("p", **spec), gone=("q",) if n % 4 == 1 else ())
            await see_queues(rows, queue("q", priority=-n))

    async def move() -> None:
        for n in range(10):
            some = uids[n * 3 : n * 3 + 15]
            await rows.see(*(job(uid, names[n % 2], priority=n) for uid in reversed(some)))

    async def match() -> None:
        for _ in range(10):
            await rows.match()
            await keeper.share()

    await asyncio.gather(change(), move(), match())
    await rows.match()
    await rows.check()
    after = await rows.value(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    assert after == before
    wrong = await rows.fetch(
        "SELECT uid FROM fluxjobs f WHERE state IN ('Pending', 'Reserved')"
        " AND priority_parts <> fluxjob_priority_parts_of(f)"
    )
    assert wrong == []
