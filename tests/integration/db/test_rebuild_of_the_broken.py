"""One FluxJob with a foreign status, or one BatchJob with foreign fields, costs no other anything.

Against a real Postgres, with the objects that a controller would have listed.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxqueue.controller.observing import resync_diff
from fluxqueue.controller.observing import sight as sight_of_cluster
from fluxqueue.controller.observing.read_workload import see_workload
from fluxqueue.controller.observing.resync_repair import ResyncRepair
from fluxqueue.db.database import Database
from fluxqueue.db.store import rebuild
from fluxqueue.scheduler.record import NUMBER_MAX
from fluxqueue.scheduler.resource_set import to_resource_set
from fluxqueue.workload import labels
from fluxqueue.workload.site import Site
from tests.support.postgres import PostgresServer
from tests.support.rows import Rows, cpu_node, settings_for
from tests.support.workloads import bare_pod, batch_job, container, owner

Obj = dict[str, Any]
CPU = {"cpu": 1000, "pods": 1}
CAPACITY = {"cpu": 2000, "pods": 10}
VICTIM = "victim"
GATED = {
    "schedulingGates": [{"name": labels.GATE}],
    "containers": [container(requests={"cpu": "1"})],
}


def _job(name: str, created: int, **spec: Any) -> Obj:
    meta = {
        "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
        "labels": {"fluxqueue/managed": "true"},
    }
    return batch_job(name, meta=meta, pod=GATED, **{"suspend": True, **spec})


def _running_pod(name: str, node: str) -> Obj:
    meta = {"ownerReferences": [owner("Job", name)], "resourceVersion": "5"}
    containers = [container(requests={"cpu": "1"})]
    pod = bare_pod(f"{name}-0", meta=meta, nodeName=node, containers=containers)
    return {**pod, "status": {"phase": "Running"}}


def _fluxjob(name: str, jobid: int, state: str, *nodes: str) -> Obj:
    status: Obj = {"state": state, "jobid": jobid, "version": 7, "queue": "default"}
    if nodes:
        given_ = [(node, CPU) for node in nodes]
        status |= {"R": to_resource_set(given_, starts_at=1_700_000_000, until=None)}
        status["startTime"] = "2026-01-01T00:01:00Z"
    meta = {"name": f"{name}-job", "namespace": "default", "uid": f"flux-{name}"}
    return {"metadata": meta, "spec": {"workload": {"uid": f"uid-{name}"}}, "status": status}


@dataclass
class World:
    """Objects of a cluster: what runs, what is about to, what waits, and the victim among them."""

    jobs: dict[str, Obj]
    pods: dict[str, Obj]
    fluxjobs: dict[str, Obj]

    def sight(self) -> sight_of_cluster.Sight:
        """As the controller has listed it."""
        written_version = [sight_of_cluster.publication(one) for one in self.fluxjobs.values()]
        return sight_of_cluster.Sight(
            {job["metadata"]["uid"]: job for job in self.jobs.values()},
            {f"uid-{name}": {pod["metadata"]["uid"]: pod} for name, pod in self.pods.items()},
            {one.workload_uid: one for one in written_version if one is not None},
            {f"n{n}": f"n{n}" for n in range(4)},
            1000,
        )


def healthy(*, does_victim_run: bool) -> World:
    """The victim stands in the midst: pages before and behind it."""
    jobs = {
        "runs": _job("runs", 1, suspend=False),
        "half": _job("half", 2, suspend=False),
        VICTIM: _job(VICTIM, 3, suspend=not does_victim_run),
        "waits": _job("waits", 4),
        "also": _job("also", 5),
    }
    pods = {"runs": _running_pod("runs", "n0")}
    fluxjobs = {
        "runs": _fluxjob("runs", 11, "Running", "n0"),
        "half": _fluxjob("half", 12, "Allocated", "n1"),
        VICTIM: _fluxjob(VICTIM, 13, "Pending"),
        "waits": _fluxjob("waits", 14, "Pending"),
        "also": _fluxjob("also", 15, "Held"),
    }
    fluxjobs["also"]["status"]["operator"] = {"heldBy": "alice"}
    if does_victim_run:
        pods[VICTIM] = _running_pod(VICTIM, "n2")
        fluxjobs[VICTIM] = _fluxjob(VICTIM, 13, "Running", "n2")
    return World(jobs, pods, fluxjobs)


def _see(workload: Any, pods: Any, flux_uid: str | None) -> Any:
    return see_workload(workload, pods, flux_uid=flux_uid, class_values={}, site=Site())


async def _nothing_to_recall() -> bool:
    return False


async def _resync(database: Database, world: World) -> ResyncRepair:
    """What ``ResyncSchedule.compare`` does with what it has listed."""
    sight = world.sight()
    suspects = await resync_diff.find(sight, resync_diff.read_rows(database))
    mending = ResyncRepair(
        database.begin,
        asyncio.Lock(),
        sight,
        suspects,
        _see,
        lambda uid: pytest.fail(f"{uid} is not gone"),
        lambda *_: None,
        lambda: False,
        _nothing_to_recall,
        database.begin,
    )
    if mending.is_takeover_in_pages:
        async with database.begin() as tx:
            highest = suspects.highest_jobid
            await rebuild.prepare(tx, suspects.outdated, highest_jobid=highest)
    await mending.run()
    return mending


@asynccontextmanager
async def _empty(postgres: PostgresServer) -> AsyncIterator[Rows]:
    url = postgres.wiped()
    async with Database(settings_for(url), role="test") as database:
        rows = Rows(database, settings=settings_for(url))
        await rows.add_nodes(*(replace(cpu_node(f"n{n}"), capacity=CAPACITY) for n in range(4)))
        yield rows


async def _others(rows: Rows, claimed: Any = None) -> list[tuple[Any, ...]]:
    """What a rebuild decides of all others. None is a number that the one claims, too."""
    found = await rows.fetch(
        "SELECT f.uid, f.jobid, f.state, s.node"
        " FROM fluxjobs f LEFT JOIN allocations a ON a.uid = f.uid AND a.is_live"
        " LEFT JOIN allocation_slots s ON s.allocation_id = a.id"
        " WHERE f.uid <> 'uid-victim' ORDER BY f.uid, s.number"
    )
    numbers = {uid: number for uid, number, *_ in EXPECTED if number == claimed}
    return [
        (row["uid"], None if row["uid"] in numbers else row["jobid"], row["state"], row["node"])
        for row in found
    ]


EXPECTED = [
    ("uid-also", 15, "Held", None),
    ("uid-half", 12, "Allocated", "n1"),
    ("uid-runs", 11, "Running", "n0"),
    ("uid-waits", 14, "Pending", None),
]

_ODD_NUMBERS = st.one_of(
    st.sampled_from([0, -1, True, NUMBER_MAX, NUMBER_MAX + 1, 2**63, 2**80, 1e308, 12, 11]),
    st.integers(),
)
_ODD_TEXTS = st.one_of(
    st.sampled_from(["", "\0", "n0", "n9", "n[0-", "n[0-99999999]", "x" * 9000, "Running"]),
    st.text(max_size=20),
)
_ODD_TIMES = st.sampled_from(
    ["0001-01-01", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "now", "2026-01-01", 5]
)
_JSON = st.recursive(
    st.none() | st.booleans() | _ODD_NUMBERS | _ODD_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_ODD_TEXTS, inner, max_size=3),
    max_leaves=6,
)
_SLOTS = st.lists(
    st.fixed_dictionaries(
        {
            "node": st.sampled_from(["n0", "n1", "n2", "n9", "a\0b", ""]) | _JSON,
            "resources": st.dictionaries(
                st.sampled_from(["cpu", "pods", "memory", "x/gpu", "a\0b"]),
                st.sampled_from([0, 1, 1000, 10**6, 2**62, 2**63, -1, "1", None]),
                max_size=3,
            ),
        },
        optional={"kind": _ODD_TEXTS},
    ),
    max_size=4,
)
_R = st.builds(
    lambda slots, start, until, held: {
        "version": 1,
        "execution": {"R_lite": [], "starttime": start, "expiration": until},
        "attributes": {"fluxqueue": {"slots": slots, "held": held}},
    },
    _SLOTS,
    st.sampled_from([0, 1, 1_700_000_000, 2**40, 2**62]),
    st.sampled_from([0, 5, 2**40, -1]),
    st.lists(_ODD_TEXTS, max_size=2),
)
_STATES = st.sampled_from(
    [
        *("Pending", "Reserved", "Held", "Allocated", "Running", "Completed", "Failed"),
        *("Cancelled", "Unsatisfiable", "Gathering", "Weird", ""),
    ]
)
_OPERATOR = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(
        ("heldBy", "priority", "queue", "requeueBy", "requeue", "cancelBy"),
        _ODD_TEXTS | _ODD_NUMBERS,
    ),
)
STATUSES = st.one_of(
    _JSON,
    st.fixed_dictionaries(
        {},
        optional={
            "state": _STATES | _JSON,
            "reason": _ODD_TEXTS | _JSON,
            "version": _ODD_NUMBERS | _JSON,
            "jobid": _ODD_NUMBERS | _JSON,
            "R": _R | _JSON,
            "startTime": _ODD_TIMES | _ODD_TEXTS,
            "endTime": _ODD_TIMES | _ODD_TEXTS,
            "operator": _OPERATOR | _JSON,
            "queue": _ODD_TEXTS | _JSON,
            "acceptedBy": _ODD_TEXTS,
            "authorHold": _ODD_TEXTS,
        },
    ),
)


@pytest.mark.long("many cases at once, for seconds of processor time")
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(status=STATUSES, does_victim_run=st.booleans())
async def test_whatever_one_status_says_the_others_are_rebuilt(
    postgres: PostgresServer, status: Any, does_victim_run: bool
) -> None:
    """And the one has a row, by its pods. It is matched with the others, and found in order."""
    world = healthy(does_victim_run=does_victim_run)
    world.fluxjobs[VICTIM]["status"] = _as_answered(status)
    async with _empty(postgres) as rows:
        mending = await _resync(rows.database, world)
        assert not mending.refused
        assert await _others(rows, _jobid(status)) == [
            (uid, number if number != _jobid(status) else None, state, node)
            for uid, number, state, node in EXPECTED
        ]
        states = await rows.states()
        if does_victim_run:
            assert states["uid-victim"] == "Running"
        assert "uid-victim" in states
        assert await rows.drift() == []
        await rows.match()
        again = await _resync(rows.database, world)
        assert {**again.refused, **again.disbelieved} == {}


def _as_answered(value: Any) -> Any:
    """As the client reads it from the API server: of numbers beyond 64 bits it makes floats."""
    return orjson.loads(json.dumps(value))


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NAMES = [
    *(labels.QUEUE, labels.DURATION, labels.PRIORITY, labels.SPREAD, labels.WITHIN, labels.CORES),
    *(labels.JOBSPEC, labels.DEPENDS_ON, labels.BEGIN_TIME, labels.HOLD, labels.USER),
    *(labels.AUTHOR_SUSPENDED, labels.SUSPENDED, labels.ON_NODE_LOSS),
]
_WISHES = st.dictionaries(st.sampled_from(_NAMES), _ODD_TEXTS, max_size=3)
_REQUESTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "x/gpu"]),
    st.sampled_from(["1", "-1", "1e30", "many", "\0", 7, None, {}, "9" * 40]),
    max_size=2,
)
_INDEXES = st.sampled_from(["0", "5-1", "0-99999999999999", "x", "\0", -1, "1,,2"])
_COUNTS = st.sampled_from([0, 1, 3, -1, 2**31, 2**63, "2", None, 1.5])
DAMAGES = st.fixed_dictionaries(
    {},
    optional={
        "annotations": _WISHES,
        "labels": _WISHES,
        "requests": _REQUESTS,
        "parallelism": _COUNTS,
        "completions": _COUNTS,
        "affinity": st.lists(_ODD_TEXTS, max_size=2),
        "deadline": _COUNTS,
        "indexed": _INDEXES,
        "pod_index": _INDEXES,
        "pod_requests": _REQUESTS,
        "pod_node": _ODD_TEXTS,
        "created": _ODD_TIMES,
    },
)


def _damage(world: World, damage: Obj) -> None:
    job = world.jobs[VICTIM]
    meta, spec = job["metadata"], job["spec"]
    template = spec["template"]["spec"] = copy.deepcopy(spec["template"]["spec"])
    meta["annotations"] = damage.get("annotations", {})
    meta["labels"] |= damage.get("labels", {})
    meta["creationTimestamp"] = damage.get("created", meta["creationTimestamp"])
    if "requests" in damage:
        template["containers"] = [container(requests=damage["requests"])]
    spec |= {name: damage[name] for name in ("parallelism", "completions") if name in damage}
    if "deadline" in damage:
        spec["activeDeadlineSeconds"] = damage["deadline"]
    if "affinity" in damage:
        term = {"key": "zone", "operator": "In", "values": damage["affinity"]}
        required = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [term]}]}}
        template["affinity"] = {"nodeAffinity": required}
    if "indexed" in damage:
        spec["completionMode"] = "Indexed"
        job["status"] = {"completedIndexes": damage["indexed"]}
    pod = world.pods.get(VICTIM)
    if pod is None:
        return
    if "pod_index" in damage:
        pod["metadata"]["annotations"] = {labels.COMPLETION_INDEX: damage["pod_index"]}
    if "pod_requests" in damage:
        pod["spec"]["containers"] = [container(requests=damage["pod_requests"])]
    pod["spec"]["nodeName"] = damage.get("pod_node", "n2")


@pytest.mark.long("many cases at once, for seconds of processor time")
@settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(damage=DAMAGES, does_victim_run=st.booleans())
async def test_whatever_one_workload_is_the_others_are_rebuilt(
    postgres: PostgresServer, damage: Obj, does_victim_run: bool
) -> None:
    """Admission was passed by, or the objects are of a server that knows other rules."""
    world = healthy(does_victim_run=does_victim_run)
    _damage(world, _as_answered(damage))
    async with _empty(postgres) as rows:
        await _resync(rows.database, world)
        assert await _others(rows) == EXPECTED
        await rows.match()
        again = await _resync(rows.database, world)
        assert not again.mended.rows_made


async def test_what_no_row_can_hold_is_taken_by_its_pods(postgres: PostgresServer) -> None:
    """A page that fails is halved. Of the one that it fails for the record is left out."""
    world = healthy(does_victim_run=True)
    async with _empty(postgres) as rows:
        sight = world.sight()
        victim = sight.fluxjobs["uid-victim"]
        # As if a reader had let through what no row can hold.
        broken = replace(victim.record(), reason="\0", set_queue="\0")
        with pytest.MonkeyPatch.context() as patch:
            read = sight_of_cluster.Published.record
            patch.setattr(
                sight_of_cluster.Published,
                "record",
                lambda one: broken if one.uid == victim.uid else read(one),
            )
            mending = await _resync(rows.database, world)
        assert set(mending.disbelieved) == {"uid-victim"}
        assert not mending.refused
        assert await _others(rows) == EXPECTED
        assert (await rows.states())["uid-victim"] == "Running"
        assert await rows.drift() == []
        again = await _resync(rows.database, world)
        assert not again.mended.rows_corrected


def _jobid(status: Any) -> Any:
    found = status.get("jobid") if isinstance(status, dict) else None
    return found if isinstance(found, int) else None
