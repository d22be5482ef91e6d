"""ResourceSharingPolicies between a served API and rows: validated, seen, their status shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.rule_watch import SHARING, RuleWatch
from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_foreign, save_nodes
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.rule_rows import RuleRowKind, save_rules
from fluxqueue.errors import ApiError, Invalid, NotFound
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import CRDS, EVENTS, NODES, SHARING_POLICIES
from fluxqueue.policy.sharing.rules import read_sharing_rule
from fluxqueue.scheduler.node_sharing import TAINT
from fluxqueue.worker.sharing_keeping import SharingKeeper
from fluxqueue.workload.node_object import node_fact
from localcluster import LocalClusterConfig
from tests.support.control_plane import ControlPlane
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("definitions")

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
DEFINITION = Path(__file__).resolve().parents[3] / "chart" / "crds" / "resourcesharingpolicies.yaml"
VALID: tuple[dict[str, Any], ...] = (
    {"policy": "subtract"},
    {"policy": "dedicated", "dedicated": {"taint": True}},
    {"policy": "dedicated", "order": 0, "nodeSelector": {"matchLabels": {"pool": "hpc"}}},
    {"policy": "headroom", "headroom": {"cpu": 2, "memory": "10%", "nvidia.com/gpu": "1"}},
    {"policy": "headroom", "headroom": {"cpu": "100%", "memory": "4Gi"}},
    {"policy": "partition", "partition": {"cpu": "12.5%", "memory": "0"}},
    {"policy": "partition", "partition": {"cpu": "1e3", "memory": "100.0%"}},
    {"policy": "nights", "parameters": {"from": 20, "deep": {"a": [1]}}, "order": 1_000_000},
    {
        "policy": "subtract",
        "nodeSelector": {
            "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
        },
    },
)
INVALID: tuple[dict[str, Any], ...] = (
    {},
    {"policy": ""},
    {"policy": "Upper"},
    {"policy": "headroom"},
    {"policy": "headroom", "headroom": {}},
    {"policy": "subtract", "headroom": {"cpu": 1}},
    {"policy": "headroom", "headroom": {"cpu": 1}, "partition": {"cpu": 1}},
    {"policy": "headroom", "headroom": {"cpu": -1}},
    {"policy": "headroom", "headroom": {"cpu": "-1"}},
    {"policy": "headroom", "headroom": {"cpu": "101%"}},
    {"policy": "headroom", "headroom": {"cpu": "-1%"}},
    {"policy": "headroom", "headroom": {"cpu": "half"}},
    {"policy": "headroom", "headroom": {"cpu": "1.00001%"}},
    {"policy": "partition", "partition": {"cpu": "9" * 41}},
    {"policy": "partition", "partition": {f"r{n}": 1 for n in range(65)}},
    {"policy": "partition", "partition": {"cpu": 1}, "parameters": {"a": 1}},
    {"policy": "subtract", "dedicated": {"taint": True}},
    {"policy": "dedicated", "dedicated": {"taint": "yes"}},
    {"policy": "subtract", "order": -1},
    {"policy": "subtract", "order": 1_000_001},
    {"policy": "subtract", "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}},
    {"policy": "subtract", "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
)
NOT_READY = "node.kubernetes.io/not-ready"
"""Admission sets it on each new node."""


def body(name: str, **spec: Any) -> dict[str, Any]:
    """A ResourceSharingPolicy as applied."""
    kind = {"apiVersion": SHARING_POLICIES.api_version, "kind": SHARING_POLICIES.kind}
    return {**kind, "metadata": {"name": name}, "spec": spec}


async def check_validation(client: KubeClient) -> None:
    """What the definition accepts, our reader accepts too. It refuses the rest in words."""
    for number, spec in enumerate(VALID):
        made = await client.create(SHARING_POLICIES, None, body(f"valid-{number}", **spec))
        if spec["policy"] != "nights":
            read_sharing_rule("p", made["spec"])
        assert made["spec"]["order"] == spec.get("order", 1000)
    for number, spec in enumerate(INVALID):
        with pytest.raises(Invalid) as refused:
            await client.create(SHARING_POLICIES, None, body(f"invalid-{number}", **spec))
        assert "spec" in str(refused.value), spec


async def test_validation_on_the_embedded_server(admin: KubeClient) -> None:
    await check_validation(admin)


@pytest.mark.real_cluster
async def test_validation_on_the_real_server(control_plane: ControlPlane) -> None:
    """By the CEL rules of its definition: the server compiles them, and counts their cost."""
    async with KubeClient(control_plane.config) as client:
        definition = yaml.safe_load(DEFINITION.read_text(encoding="utf-8"))
        await client.create(CRDS, None, definition)

        async def is_served() -> bool:
            try:
                await client.list(SHARING_POLICIES)
            except NotFound:
                return False
            return True

        try:
            await eventually(is_served, "the definition is served")
            await check_validation(client)
        finally:
            await client.delete(CRDS, None, definition["metadata"]["name"])


class Marks:
    """What the watch says must be written."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def until(self, name: str) -> None:
        await eventually(lambda: name in self.names, f"{name} marked")
        self.names.clear()


async def test_seen_changed_refused_and_gone(admin: KubeClient) -> None:
    """A policy of a package that is not installed is set aside, with an Event."""
    marks = Marks()
    watch = RuleWatch(admin, marks.names.append, ManualClock(), SHARING)
    watch.objects.start()
    await watch.objects.synced.wait()
    try:
        await admin.create(SHARING_POLICIES, None, body("p", policy="subtract"))
        await marks.until("p")
        (one,), gone = watch.see(["p", "q"])
        assert (one.fault, one.generation, gone) == (None, 1, ["q"])
        change = {"spec": {"policy": "nights", "parameters": {"from": 1}}}
        await admin.patch(SHARING_POLICIES, None, "p", change, kind=PatchKind.MERGE)
        await marks.until("p")
        (one,), gone = watch.see(["p"])
        assert "'nights' is no installed sharing policy" in str(one.fault)
        await watch.tell_faults([one])
        (event,) = (await admin.list(EVENTS)).items
        assert event["reason"] == "InvalidSharingPolicy"
        change = {"spec": {"policy": "subtract", "parameters": None}}
        change["spec"]["nodeSelector"] = {"matchLabels": {"a": "\0"}}
        await admin.patch(SHARING_POLICIES, None, "p", change, kind=PatchKind.MERGE)
        await marks.until("p")
        (one,), gone = watch.see(["p"])
        assert (one.spec, str(one.fault)[:26]) == ({}, "spec: has a null character")
        status = {"status": {"nodes": 5}}
        await admin.patch(
            SHARING_POLICIES, None, "p", status, kind=PatchKind.MERGE, subresource="status"
        )
        await admin.delete(SHARING_POLICIES, None, "p")
        await marks.until("p")
        assert watch.see(["p"]) == ([], ["p"])
    finally:
        await watch.objects.stop()


async def test_the_status_says_what_is_given_and_who_exceeds_it(
    admin: KubeClient, database_url: str
) -> None:
    """Nodes, amounts, violations and running work. It is written only when it changes."""
    spec = {"policy": "partition", "partition": {"cpu": "50%"}}
    made = await admin.create(SHARING_POLICIES, None, body("half", **spec))
    clock = ManualClock()
    settings = settings_for(database_url)
    watch = RuleWatch(admin, lambda _: None, clock, SHARING)
    watch.objects.observe(made)
    async with Database(settings, role="test") as database:
        rows = Rows(database, clock, settings)
        await rows.begin_term()
        assert rows.matcher is not None
        context = replace(rows.context(), client=admin)
        keeper = SharingKeeper(context, rows.matcher)
        assert await keeper.turn() == 0, "there is no policy yet"
        async with database.begin() as tx:
            await save_nodes(tx, [cpu_node("n0", cpu=16000), cpu_node("n1", cpu=3001)], ())
            await save_workloads(tx, [workload("a", request(cpu=16000))])
        await rows.match()
        async with database.begin() as tx:
            await save_rules(tx, RuleRowKind.SHARING, *watch.see(["half"]))
            theirs = ForeignPod("u", "theirs", "web", "n1", {CPU: 2000})
            await save_foreign(tx, [theirs], ())
        await rows.match()
        assert await keeper.turn() == 1
        assert await keeper.turn() == 0
        found = await admin.get(SHARING_POLICIES, None, "half")
        status = found["status"]
        assert (status["nodes"], status["given"]) == (2, {"cpu": "9001m"})
        assert (status["exceededNodes"], status["violations"]) == (1, 0)
        (excess,) = status["exceeding"]
        assert excess == {
            "node": "n0",
            "jobs": ["default/a"],
            "held": {"cpu": "16"},
            "given": {"cpu": "8"},
        }
        holds = {one["type"]: (one["status"], one["message"]) for one in status["conditions"]}
        assert holds["Valid"] == ("True", "")
        assert holds["Respected"] == (
            "False",
            "default/a on n0 hold more than is given (16 cpu of 8 cpu)",
        )
        again = SharingKeeper(context, rows.matcher)
        assert await again.turn() == 0, "after a restart it is read, not written again"

        dedicated = {"spec": {"policy": "dedicated", "partition": None}}
        changed = await admin.patch(SHARING_POLICIES, None, "half", dedicated, kind=PatchKind.MERGE)
        watch.objects.observe(changed)
        async with database.begin() as tx:
            await save_rules(tx, RuleRowKind.SHARING, *watch.see(["half"]))
        await rows.match()
        assert await keeper.turn() == 1
        status = (await admin.get(SHARING_POLICIES, None, "half"))["status"]
        assert (status["exceededNodes"], status["exceeding"]) == (0, [])
        assert status["violatingPods"] == [{"namespace": "theirs", "name": "web", "node": "n1"}]
        assert status["observedGeneration"] == 2
        await admin.delete(SHARING_POLICIES, None, "half")
        with pytest.raises(ApiError):
            await admin.get(SHARING_POLICIES, None, "half")
        async with database.begin() as tx:
            await save_rules(tx, RuleRowKind.SHARING, [], ["half"])
        assert await keeper.turn() == 0


async def test_dedicated_nodes_are_tainted_as_long_as_the_policy_wants_it(
    admin: KubeClient, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other taints stay. Without the right to patch nodes the status says so."""
    spec = {
        "policy": "dedicated",
        "dedicated": {"taint": True},
        "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "n0"}},
    }
    made = await admin.create(SHARING_POLICIES, None, body("ours", **spec))
    other = {"key": "example.com/gpu", "effect": "NoSchedule"}
    for name in ("n0", "n1"):
        labels = {"kubernetes.io/hostname": name}
        node = {"metadata": {"name": name, "labels": labels}, "spec": {"taints": [other]}}
        await admin.create(NODES, None, node)
    clock, settings = ManualClock(), settings_for(database_url)
    async with Database(settings, role="test") as database:
        rows = Rows(database, clock, settings)
        await rows.begin_term()
        assert rows.matcher is not None
        keeper = SharingKeeper(replace(rows.context(), client=admin), rows.matcher)
        watch = RuleWatch(admin, lambda _: None, clock, SHARING)
        watch.objects.observe(made)

        async def observe() -> dict[str, set[str]]:
            nodes = [node_fact(one) for one in (await admin.list(NODES)).items]
            async with database.begin() as tx:
                await save_rules(tx, RuleRowKind.SHARING, *watch.see(["ours"]))
                await save_nodes(tx, nodes, ())
            await rows.match()
            await keeper.turn()
            found = {one["metadata"]["name"]: one for one in (await admin.list(NODES)).items}
            return {
                name: {taint["key"] for taint in one["spec"].get("taints") or ()} - {NOT_READY}
                for name, one in found.items()
            }

        async def tainted() -> dict[str, str]:
            status = (await admin.get(SHARING_POLICIES, None, "ours"))["status"]
            return {one["type"]: one["status"] + one["message"] for one in status["conditions"]}

        refused = ApiError(403, "Forbidden", "nodes is forbidden", {})
        patch = admin.patch

        async def refuse(resource: Any, *given: Any, **more: Any) -> Any:
            if resource is NODES:
                raise refused
            return await patch(resource, *given, **more)

        with monkeypatch.context() as without_right:
            without_right.setattr(admin, "patch", refuse)
            assert await observe() == {"n0": {other["key"]}, "n1": {other["key"]}}
            assert (await tainted())["Tainted"].startswith("Falsenode n0 cannot be changed: 403")
        expected = {"n0": {other["key"], TAINT.key}, "n1": {other["key"]}}
        assert await observe() == expected
        assert (await tainted())["Tainted"] == "True"
        assert await observe() == expected
        off = {"spec": {"dedicated": {"taint": False}}}
        kind = PatchKind.MERGE
        watch.objects.observe(await admin.patch(SHARING_POLICIES, None, "ours", off, kind=kind))
        assert await observe() == {"n0": {other["key"]}, "n1": {other["key"]}}
        await observe()
        assert "Tainted" not in await tainted()
