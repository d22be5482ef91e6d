"""FluxQueues between a served API and rows: seen, made, shown. Nothing twice, nothing lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.queue_watch import QueueWatch
from fluxqueue.db.database import Database
from fluxqueue.db.leadership import seize
from fluxqueue.db.store.cluster_rows import save_nodes
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.queues import QueueSeen, save_queues
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.tree import count_levels
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import EVENTS, FLUXQUEUES, NAMESPACES
from fluxqueue.policy.label_selector import is_selected
from fluxqueue.policy.queue_rules import read_rules
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.queue_keeping import STATUS_S, QueueKeeper
from localcluster import LocalClusterConfig
from tests.support.rows import settings_for, workload
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("definitions")

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)


def body(name: str, **spec: Any) -> dict[str, Any]:
    """A FluxQueue as applied."""
    kind = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    return {**kind, "metadata": {"name": name}, "spec": spec}


@dataclass
class DirtySet:
    """What the watch says must be written."""

    names: list[str] = field(default_factory=list)

    async def until(self, name: str) -> None:
        """Wait until ``name`` is marked. Forget all marks."""

        await eventually(lambda: name in self.names, f"{name} marked")
        self.names.clear()


@pytest_asyncio.fixture
async def watch(admin: KubeClient, marks: DirtySet) -> AsyncIterator[QueueWatch]:
    """A running watch."""
    made = QueueWatch(admin, marks.names.append, ManualClock(), {"policy": "hybrid"})
    for informer in (made.objects, made.namespaces):
        informer.start()
        await informer.synced.wait()
    yield made
    for informer in (made.objects, made.namespaces):
        await informer.stop()


@pytest.fixture
def marks() -> DirtySet:
    """Shared by the test and the watch."""
    return DirtySet()


async def test_the_default_queue_is_made_once(admin: KubeClient, watch: QueueWatch) -> None:
    """With the policy of the workers, and left alone when it is there."""
    await watch.ensure_default()
    (made,) = (await admin.list(FLUXQUEUES)).items
    assert made["metadata"]["name"] == "default"
    assert made["spec"] == {
        "policy": "hybrid",
        "limits": {"perJob": {"graceSeconds": 600}},
        "priority": 0,
        "weight": 1,
        "enabled": True,
        "started": True,
    }
    assert watch.names() == {"default"}
    await admin.patch(FLUXQUEUES, None, "default", {"spec": {"priority": 7}}, kind=PatchKind.MERGE)
    await watch.ensure_default()
    (kept,) = (await admin.list(FLUXQUEUES)).items
    assert kept["spec"] == {**made["spec"], "priority": 7}


async def test_selectors_follow_the_labels_of_namespaces(
    admin: KubeClient, watch: QueueWatch, marks: DirtySet
) -> None:
    """Resolved anew when a namespace comes, changes or goes. Other queues are not bothered."""
    allowed = {"names": ["fixed"], "selector": {"matchLabels": {"team": "a"}}}
    await admin.create(FLUXQUEUES, None, body("q", allowedNamespaces=allowed))
    await admin.create(FLUXQUEUES, None, body("plain"))
    await marks.until("plain")
    (one,), gone = watch.see(["q"])
    assert (one.namespaces, gone) == (["fixed"], [])
    space = {"metadata": {"name": "blue", "labels": {"team": "a"}}}
    await admin.create(NAMESPACES, None, space)
    await marks.until("q")
    assert watch.see(["q"])[0][0].namespaces == ["blue", "fixed"]
    patch = {"metadata": {"labels": {"team": "b"}}}
    await admin.patch(NAMESPACES, None, "blue", patch, kind=PatchKind.MERGE)
    await marks.until("q")
    assert watch.see(["q"])[0][0].namespaces == ["fixed"]
    assert "plain" not in marks.names
    assert watch.see(["plain"])[0][0].namespaces is None


async def test_a_status_is_no_news(admin: KubeClient, watch: QueueWatch, marks: DirtySet) -> None:
    """Or the counts that we write would wake a cycle, which changes the counts."""
    await admin.create(FLUXQUEUES, None, body("q"))
    await marks.until("q")
    status = {"status": {"pending": 7}}
    await admin.patch(FLUXQUEUES, None, "q", status, kind=PatchKind.MERGE, subresource="status")
    await admin.patch(FLUXQUEUES, None, "q", {"spec": {"priority": 1}}, kind=PatchKind.MERGE)
    await marks.until("q")
    await admin.patch(FLUXQUEUES, None, "q", {"status": {"pending": 8}}, subresource="status")
    await admin.delete(FLUXQUEUES, None, "q")

    await eventually(lambda: watch.objects.get("", "q") is None, "the deletion seen")
    assert marks.names == ["q"], "marked once more, for the deletion"
    assert watch.see(["q"]) == ([], ["q"])


async def test_a_spec_that_only_we_refuse_is_told(admin: KubeClient, watch: QueueWatch) -> None:
    """More than the API server can check: an Event on the queue, and the former spec stays."""
    limits = {"perJob": {"durationSeconds": 60}}
    await admin.create(FLUXQUEUES, None, body("q", defaultDuration="2h", limits=limits))

    await eventually(lambda: "q" in watch.names(), "q seen")
    seen, _ = watch.see(["q"])
    assert seen[0].rules is None
    await watch.tell_faults(seen)
    await watch.tell_faults(seen)
    (event,) = (await admin.list(EVENTS, "default")).items
    assert event["reason"] == "InvalidQueue"
    assert "spec.defaultDuration: 7200 s is more than" in event["message"]


async def test_counts_are_shown_once_and_when_they_change(
    admin: KubeClient, database_url: str
) -> None:
    """One write for any number of transitions, none without, and conditions keep their time."""
    made = await admin.create(FLUXQUEUES, None, body("q", enabled=False))
    settings, clock = settings_for(database_url), ManualClock()
    async with Database(settings, role="test") as database:

        async def write(*jobs: Any) -> None:
            async with database.begin() as tx:
                await save_workloads(tx, jobs)

        async with database.begin() as tx:
            rules, uid = read_rules("q", made["spec"]), made["metadata"]["uid"]
            await save_queues(tx, [QueueSeen("q", uid, 1, made["spec"], None, rules)], [])
        await write(*(workload(f"j{n}", queue="q") for n in range(5)))
        context = WorkerContext(database, admin, settings, clock, "test")
        keeper = QueueKeeper(context, "matcher", await seize(database, "matcher", "test"))
        assert STATUS_S == 2, "as docs/admin/queues.md says"
        assert await keeper.show() == 1
        status = (await admin.get(FLUXQUEUES, None, "q"))["status"]
        assert (status["pending"], status["running"], status["held"]) == (5, 0, 0)
        holds = {one["type"]: one["status"] for one in status["conditions"]}
        assert holds == {"Valid": "True", "Enabled": "False", "Started": "True"}
        assert await keeper.show() == 0
        clock.advance(100)
        await write(*(workload(f"h{n}", queue="q", held_by="author") for n in range(3)))
        assert await keeper.show() == 1
        again = (await admin.get(FLUXQUEUES, None, "q"))["status"]
        assert again["held"] == 3
        assert again["conditions"] == status["conditions"]
        other = QueueKeeper(context, "matcher", 1)
        assert await other.show() == 0, "after a restart it is read, not written again"


async def test_the_levels_of_the_cluster_are_shown(admin: KubeClient, database_url: str) -> None:
    """Places, nodes and those that do not say where they stand. Counted again after a minute, by
    the same rule as ``fluxqueue graph --levels``."""
    made = await admin.create(FLUXQUEUES, None, body("q"))
    settings = replace(settings_for(database_url), levels="zone,rack=my.org/rack|rack2")
    zone, rack = "topology.kubernetes.io/zone", "my.org/rack"
    nodes = [
        NodeFact("n0", "0", {}, {zone: "a", rack: "r1"}),
        NodeFact("n1", "1", {}, {zone: "b", rack: "", "rack2": "r1"}),
        NodeFact("n2", "2", {}, {zone: "b", "rack": "r1"}),
        NodeFact("n3", "3", {}, {}),
    ]
    clock = ManualClock()
    async with Database(settings, role="test") as database:
        async with database.begin() as tx:
            rules, uid = read_rules("q", made["spec"]), made["metadata"]["uid"]
            await save_queues(tx, [QueueSeen("q", uid, 1, made["spec"], None, rules)], [])
            await save_nodes(tx, nodes, ())
        context = WorkerContext(database, admin, settings, clock, "test")
        keeper = QueueKeeper(context, "matcher", await seize(database, "matcher", "test"))
        assert await keeper.show() == 1
        shown = (await admin.get(FLUXQUEUES, None, "q"))["status"]["levels"]
        expected = count_levels(parse_levels(settings.levels), nodes)
        assert shown == [one.to_json() for one in expected]
        assert [(one["name"], one["places"], one["unknownNodes"]) for one in shown] == [
            ("zone", 2, 1),
            ("rack", 2, 1),
        ]
        async with database.begin() as tx:
            await save_nodes(tx, [replace(nodes[3], labels={zone: "c"})], ())
        assert await keeper.show() == 0
        clock.advance(61)
        assert await keeper.show() == 1


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}]}, True),
        (
            {"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "a", "operator": "Exists"}]},
            True,
        ),
    ],
)
def test_label_selectors(selector: dict[str, Any], expected: bool) -> None:
    """As ``metav1.LabelSelector``."""
    assert is_selected(selector, {"a": "1"}) is expected
