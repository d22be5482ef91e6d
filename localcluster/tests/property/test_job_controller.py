"""The embedded Job controller against a model: any order of pod events, user actions and crashes.

The real controller's promise, which a queue that counts finished pods relies on: every pod that
ended is counted exactly once, no matter where between its four writes the controller died.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from localcluster.controllers.job_backoff import BackoffRecord
from localcluster.controllers.job_plan import JobPlan, finish, plan_job, settle_counts
from localcluster.controllers.job_pods import TRACKING_FINALIZER, index_of, is_tracked
from localcluster.controllers.job_view import is_job_finished
from localcluster.loops.objects import is_active, is_deleting, write_time
from localcluster.loops.options import ControllerOptions
from localcluster.obj import Obj

OPTIONS = ControllerOptions(job_backoff_s=1.0, job_backoff_max_s=4.0)
START = datetime(2026, 1, 1, tzinfo=UTC)
LATER_S = 60
STAGES = 5


@dataclass
class World:
    """One Job, its pods, a clock that a test moves, and what really happened."""

    job: Obj
    pods: dict[str, Obj] = field(default_factory=dict)
    now: datetime = START
    backoff: BackoffRecord = field(default_factory=BackoffRecord)
    made: int = 0
    succeeded: set[str] = field(default_factory=set)
    indexes: set[int] = field(default_factory=set)

    def sync(self, crash_at: int) -> None:
        """One sync that stops before stage ``crash_at`` (``STAGES``: it does not)."""
        if is_job_finished(self.job):
            for pod in self.pods.values():
                self._strip(pod)
            self._sweep()
            return
        plan = plan_job(self.job, list(self.pods.values()), self.now, self.backoff, OPTIONS)
        stages = [self._delete, self._create, self._write, self._release, self._finish]
        for number, stage in enumerate(stages):
            if number >= crash_at:
                self.backoff = BackoffRecord()  # memory of the process that died
                return
            stage(plan)
        self._sweep()

    def _delete(self, plan: JobPlan) -> None:
        for pod in plan.delete:
            if plan.is_stripped_first:
                self._strip(pod)
            self.delete(pod["metadata"]["name"])

    def _create(self, plan: JobPlan) -> None:
        for body in plan.create:
            self.made += 1
            pod = copy.deepcopy(body)
            name = f"p{self.made}"
            pod["metadata"] |= {
                "name": name,
                "uid": name,
                "creationTimestamp": write_time(self.now),
            }
            pod["spec"]["nodeName"] = "node"
            pod["status"] = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            self.pods[name] = pod

    def _write(self, plan: JobPlan) -> None:
        self.job["status"] = copy.deepcopy(plan.status)
        self.backoff = plan.backoff

    def _release(self, plan: JobPlan) -> None:
        for pod in plan.release:
            if pod["metadata"]["name"] in self.pods:
                self._strip(self.pods[pod["metadata"]["name"]])

    def _finish(self, plan: JobPlan) -> None:
        status = copy.deepcopy(plan.status)
        settle_counts(status, {uid for uid, pod in self.pods.items() if is_tracked(pod)})
        finish(status, plan.final, self.now)
        self.job["status"] = status

    @staticmethod
    def _strip(pod: Obj) -> None:
        left = [f for f in pod["metadata"].get("finalizers", []) if f != TRACKING_FINALIZER]
        pod["metadata"]["finalizers"] = left

    def _sweep(self) -> None:
        """The API server removes what is deleted, ended and unheld."""
        for name, pod in list(self.pods.items()):
            is_over = pod["status"]["phase"] in {"Succeeded", "Failed"}
            if is_deleting(pod) and is_over and not is_tracked(pod):
                del self.pods[name]

    def delete(self, name: str) -> None:
        """Graceful deletion."""
        metadata = self.pods[name]["metadata"]
        metadata.setdefault("deletionTimestamp", write_time(self.now + timedelta(seconds=30)))
        metadata.setdefault("deletionGracePeriodSeconds", 30)

    def end(self, name: str, *, well: bool) -> None:
        """The kubelet reports the end of a pod."""
        pod = self.pods[name]
        if pod["status"]["phase"] != "Running":
            return
        well = well and not is_deleting(pod)
        terminated = {"exitCode": int(not well), "finishedAt": write_time(self.now)}
        pod["status"] = {
            "phase": "Succeeded" if well else "Failed",
            "containerStatuses": [{"name": "m", "state": {"terminated": terminated}}],
        }
        # A pod that was stripped before its deletion (suspend, scale down) never counts.
        if well and is_tracked(pod):
            self.succeeded.add(name)
            index = index_of(pod)
            if index is not None:
                self.indexes.add(index)

    def check(self) -> None:
        """What must hold at every moment."""
        spec, status = self.job["spec"], self.job["status"]
        active = [pod for pod in self.pods.values() if is_active(pod)]
        assert len(active) <= spec["parallelism"]
        if spec["completionMode"] == "Indexed":
            taken = [index_of(pod) for pod in active]
            assert len(taken) == len(set(taken))
            assert status.get("succeeded", 0) <= len(self.indexes)
        else:
            uncounted = status.get("uncountedTerminatedPods", {}).get("succeeded", [])
            assert status.get("succeeded", 0) + len(uncounted) <= len(self.succeeded)
        if is_job_finished(self.job):
            assert not status.get("active")
            assert not status.get("terminating")
            assert not status["uncountedTerminatedPods"]


# Crashes late in a sync, one after the other, are what counting is hard for: they come often.
STEP = st.one_of(
    st.tuples(st.sampled_from(["sync", "wait", "suspend", "resume"]), st.just(0)),
    st.tuples(st.just("crash"), st.integers(0, STAGES - 1)),
    st.tuples(st.just("crash"), st.integers(3, STAGES - 1)),
    st.tuples(st.sampled_from(["succeed", "succeed", "fail", "delete"]), st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["NonIndexed", "Indexed"]),
    st.sampled_from(["TerminatingOrFailed", "Failed"]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(STEP, min_size=5, max_size=40),
)
def test_every_ended_pod_counts_once(
    mode: str, replacement: str, parallelism: int, completions: int, steps: list[tuple[str, int]]
) -> None:
    """Counts never exceed the truth, and reach it in the end, through any crashes."""
    world = World(_job(mode, replacement, parallelism, completions))
    for step, number in steps:
        _take(world, step, number)
        world.check()
    _come_to_rest(world)
    status = world.job["status"]
    assert is_job_finished(world.job)
    assert not any(is_tracked(pod) for pod in world.pods.values())
    if mode == "Indexed":
        assert status["succeeded"] == len(world.indexes) == completions
        assert status["completedIndexes"] == _all_indexes(completions)
    else:
        assert status["succeeded"] == len(world.succeeded)
        assert status["succeeded"] >= completions


def _all_indexes(completions: int) -> str:
    return {1: "0", 2: "0,1"}.get(completions, f"0-{completions - 1}")


def _job(mode: str, replacement: str, parallelism: int, completions: int) -> Obj:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "m"}]}}
    return {
        "metadata": {"name": "j", "namespace": "n", "uid": "j", "generation": 1},
        "spec": {
            "completionMode": mode,
            "podReplacementPolicy": replacement,
            "parallelism": parallelism,
            "completions": completions,
            "backoffLimit": 10_000,
            "template": template,
        },
        "status": {},
    }


def _take(world: World, step: str, number: int) -> None:
    if step == "sync":
        world.sync(STAGES)
    elif step == "crash":
        world.sync(number)
    elif step in {"suspend", "resume"}:
        world.job["spec"]["suspend"] = step == "suspend"
    elif step == "wait":
        world.now += timedelta(seconds=LATER_S)
    elif world.pods:
        name = sorted(world.pods)[number % len(world.pods)]
        if step == "delete":
            world.delete(name)
        else:
            world.end(name, well=step == "succeed")


def _come_to_rest(world: World) -> None:
    """Time passes, pods end well, and no node crashes any more."""
    world.job["spec"]["suspend"] = False
    for _ in range(60):
        world.now += timedelta(seconds=LATER_S)
        world.sync(STAGES)
        world.check()
        if is_job_finished(world.job) and not any(map(is_tracked, world.pods.values())):
            return
        for name in list(world.pods):
            world.end(name, well=True)
