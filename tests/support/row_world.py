"""A small world for the stateful model test: Jobs, pods and nodes as they are and as seen.

Plays API server, Job controller, scheduler and node agents in memory; only the rows are real. What
the controller sees of a Job and of its pods lags behind the truth, each by itself. Everything is
drawn from one seeded generator, so a seed is a story that can be told again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.db.life.desired_state import Wanted
from fluxqueue.db.life.observations import WorkloadSeen
from fluxqueue.db.life.settling import Ungate
from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.indexes import Range, as_multirange
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import slot_kinds
from tests.support.pool_model import request
from tests.support.rows import cpu_node, workload

NODES = {"n0": 4, "n1": 4, "n2": 6}


@dataclass
class Job:
    """A Job as it is. ``left``: completions still to come; ``ended``: indexes that have."""

    uid: str
    asked: Jobspec
    priority: int
    left: int
    parallelism: int
    is_suspended: bool = True
    is_author_suspended: bool = False
    is_held: bool = False
    depends_on: tuple[tuple[str, str], ...] = ()
    generation: int = 1
    is_deleting: bool = False
    is_gone: bool = False
    result: str | None = None
    is_indexed: bool = False
    completions: int = 0
    ended: frozenset[int] = frozenset()
    pinned_to: str | None = None
    pods: dict[str, PodFact] = field(default_factory=dict)

    @property
    def wanted(self) -> int:
        """Pods it may run at once."""
        return 0 if self.result else min(self.parallelism, self.left)

    @property
    def is_pinnable(self) -> bool:
        """Whether its template may name its node: it never wants more pods than at first."""
        return not self.is_indexed and self.parallelism >= self.completions


class World:
    """The truth, what is seen of it, and what may happen next."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes: dict[str, NodeFact] = {name: cpu_node(name, c) for name, c in NODES.items()}
        self.jobs: dict[str, Job] = {}
        self.foreign: dict[str, int] = {}
        self.seen_job: dict[str, Job] = {}
        self.seen_pods: dict[str, tuple[PodFact, ...]] = {}
        self.target: dict[str, str] = {}
        self.stopped: set[str] = set()
        self.disturbed: set[str] = set()
        """Jobs that were scaled or stopped: their slots have gone back and forth."""
        self.made = 0
        self.ended: Counter[str] = Counter()

    # --- what users and nodes do -------------------------------------------------------------

    def submit(self) -> None:
        """A new Job; some never fit, some are of size 0, some suspended by their author."""
        self.made += 1
        draw = self.random
        count = draw.choice((1, 1, 2, 3, 4, 0))
        asked = request(
            count,
            duration_s=draw.choice((None, 30, 60)),
            is_spread=draw.random() < 0.2,
            is_exclusive=draw.random() < 0.15,
            cpu=draw.choice((1, 2, 2, 3, 9 if draw.random() < 0.2 else 4)),
        )
        uid = f"{draw.randrange(10**6):06}-{self.made}"
        completions = max(count, 1) + draw.choice((0, 0, 2))
        self.jobs[uid] = Job(
            uid,
            asked,
            draw.choice((0, 0, 5)),
            left=completions,
            completions=completions,
            is_indexed=draw.random() < 0.5,
            parallelism=count,
            is_author_suspended=draw.random() < 0.1,
            is_held=draw.random() < 0.05,
            depends_on=self._edges(),
        )

    def _edges(self) -> tuple[tuple[str, str], ...]:
        """To Jobs that are there, gone, or never were."""
        draw = self.random
        if draw.random() > 0.25:
            return ()
        names = [*self.jobs, "nobody"]
        kinds = ("afterok", "afternotok", "afterany", "after")
        return tuple(
            (draw.choice(kinds), draw.choice(names)) for _ in range(draw.choice((1, 1, 2)))
        )

    def edit(self) -> None:
        """An author changes what a Job waits for: circles may close, and open."""
        if job := self._pick(lambda j: not j.is_deleting and not j.result):
            job.depends_on = self._edges()
            job.is_held = self.random.random() < 0.1

    def suspend(self) -> None:
        """An author suspends a Job that we have let go."""
        if job := self._pick(lambda j: not j.is_suspended and not j.is_deleting and not j.result):
            self._set_suspend(job, True)
            self.stopped.add(job.uid)
            self.disturbed.add(job.uid)

    def _set_suspend(self, job: Job, is_suspended: bool) -> None:
        if job.is_suspended != is_suspended:
            job.is_suspended, job.generation = is_suspended, job.generation + 1

    def delete(self) -> None:
        """Someone deletes a Job; its pods are asked to go."""
        if job := self._pick(lambda j: not j.is_deleting):
            job.is_deleting = True
            for pod in job.pods.values():
                job.pods[pod.uid] = replace(pod, is_terminating=True)

    def unsuspend(self) -> None:
        """An author lets a Job go, or resumes one."""
        if job := self._pick(lambda j: j.is_author_suspended):
            job.is_author_suspended = False
            self._set_suspend(job, False)
        elif job := self._pick(lambda j: j.uid in self.stopped):
            self.stopped.discard(job.uid)
            self._set_suspend(job, False)

    def scale(self) -> None:
        """Another parallelism."""
        if job := self._pick(lambda j: not j.result and not j.is_deleting):
            job.parallelism = self.random.choice((1, 2, 3))
            self.disturbed.add(job.uid)

    def lose_node(self) -> None:
        """A node is removed, its pods with it."""
        if len(self.nodes) > 1:
            name = self.random.choice(sorted(self.nodes))
            del self.nodes[name]
            for job in self.jobs.values():
                job.pods = {
                    u: p for u, p in job.pods.items() if p.node != name or p.phase == "Succeeded"
                }

    def change_node(self) -> None:
        """A node goes down, or is cordoned, or healthy again."""
        name = self.random.choice(sorted(self.nodes))
        self.nodes[name] = cpu_node(
            name,
            NODES[name],
            is_up=self.random.random() < 0.7,
            is_schedulable=self.random.random() < 0.8,
        )

    def return_nodes(self) -> None:
        """All nodes are there and healthy."""
        self.nodes = {name: cpu_node(name, cpu) for name, cpu in NODES.items()}

    def foreigner(self) -> None:
        """A pod of others comes, or goes."""
        if self.foreign and self.random.random() < 0.6:
            self.foreign.popitem()
        else:
            self.foreign[self.random.choice(sorted(NODES))] = self.random.choice((1, 3, 9))

    def resume_all(self) -> None:
        """No author holds anything any more, nor suspends again what we made wait."""
        for job in self.jobs.values():
            if job.is_author_suspended or job.uid in self.stopped:
                job.is_author_suspended = False
                self._set_suspend(job, False)
        self.stopped.clear()

    # --- what Kubernetes does ----------------------------------------------------------------

    def run_controllers(self) -> None:
        """Job controller, scheduler and garbage collector, once around."""
        for job in list(self.jobs.values()):
            if job.is_suspended and not job.result:
                # The Job controller ends the pods of a suspended Job.
                for pod in list(job.pods.values()):
                    if pod.node is None:
                        del job.pods[pod.uid]
                    else:
                        job.pods[pod.uid] = replace(pod, is_terminating=True)
            if not job.is_suspended and not job.is_deleting and not job.result:
                self._make_pods(job)
                if job.left == 0:
                    job.result = "Completed"
            if job.result or job.is_deleting:
                job.pods = {u: p for u, p in job.pods.items() if not p.is_gated}
            if job.is_deleting and not job.is_gone and self.random.random() < 0.5:
                job.is_gone = True
            for pod in list(job.pods.values()):
                self._bind(job, pod)

    def _make_pods(self, job: Job) -> None:
        active = [p for p in job.pods.values() if not p.is_terminal and not p.is_terminating]
        for _ in range(job.wanted - len(active)):
            self.made += 1
            uid = f"p{self.made}"
            is_gated = job.pinned_to is None
            job.pods[uid] = PodFact(uid, uid, "Pending", is_gated, index=self._next_index(job))
            if job.pinned_to is not None:
                self.target[uid] = job.pinned_to
        for pod in active[: max(0, len(active) - job.wanted)]:
            job.pods[pod.uid] = replace(pod, is_terminating=True)

    def _next_index(self, job: Job) -> int | None:
        """The lowest that has not ended and has no pod."""
        if not job.is_indexed:
            return None
        there = {p.index for p in job.pods.values() if not p.is_terminal and not p.is_terminating}
        return min(set(range(job.completions)) - job.ended - there, default=None)

    def _bind(self, job: Job, pod: PodFact) -> None:
        """The scheduler binds where there is room; the node agent starts it."""
        name = self.target.get(pod.uid)
        if pod.is_gated or pod.node or name not in self.nodes or pod.is_terminating:
            return
        fact = self.nodes[name]
        need = dict(slot_kinds(job.asked)[0].needs)[CPU]
        ours, others = self.used(name), self.foreign.get(name, 0)
        # The next pod of a pinned Job comes before the one in whose place it comes has gone.
        is_early = job.pinned_to and any(p.is_terminating for p in job.pods.values())
        is_room = ours + need <= fact.capacity[CPU]
        assert is_room or is_early, f"{pod.uid} was let go to {name}, which is full"
        if fact.is_up and fact.is_schedulable and ours + others + need <= fact.capacity[CPU]:
            job.pods[pod.uid] = replace(pod, node=name, phase="Running")

    def used(self, name: str) -> int:
        """Cpu of our pods that are bound to the node and not over."""
        return sum(
            dict(slot_kinds(job.asked)[0].needs)[CPU]
            for job in self.jobs.values()
            for pod in job.pods.values()
            if pod.node == name and not pod.is_terminal
        )

    def run_pods(self, chance: float = 0.3) -> None:
        """Running pods succeed or fail; terminating and ended ones disappear."""
        for job in self.jobs.values():
            for pod in list(job.pods.values()):
                if self.random.random() > chance:
                    continue
                if pod.is_terminal or pod.is_terminating:
                    if pod.phase != "Succeeded" or self._is_counted(job, pod):
                        del job.pods[pod.uid]
                elif pod.phase == "Running":
                    ok = self.random.random() < 0.7
                    job.pods[pod.uid] = replace(pod, phase="Succeeded" if ok else "Failed")
                    self._count(job, pod, is_success=ok)

    def _is_counted(self, job: Job, pod: PodFact) -> bool:
        """Whether its success is seen in the status of its Job: before that it is not deleted."""
        seen = self.seen_job.get(job.uid)
        return pod.index is None or (seen is not None and pod.index in seen.ended)

    @staticmethod
    def _count(job: Job, pod: PodFact, *, is_success: bool) -> None:
        if is_success and pod.index is not None:
            job.ended |= {pod.index}
            job.left = job.completions - len(job.ended)
        elif is_success and not job.is_indexed:
            job.left -= int(job.left > 0)

    # --- what fluxqueue does to it -----------------------------------------------------------

    def make(self, wanted: Wanted) -> Job | None:
        """Our release: the Job is made what the row wants; gives it, if it could be.

        A repeat changes nothing.
        """
        job = self.jobs.get(wanted.uid)
        if job is None or job.is_gone:
            return None
        if wanted.is_deleted:
            job.is_deleting = True
            for pod in job.pods.values():
                job.pods[pod.uid] = replace(pod, is_terminating=True)
            return None
        if wanted.is_suspended:
            job.is_author_suspended = False  # its mark goes with the patch
            if job.is_suspended and job.pinned_to is not None:
                job.pinned_to, job.generation = None, job.generation + 1
        elif job.is_suspended:
            job.pinned_to = wanted.pin.node if wanted.pin else None
        self._set_suspend(job, wanted.is_suspended)
        return job if job.pinned_to is None or not wanted.is_suspended else None

    def evict(self, uid: str, pods: Sequence[str]) -> None:
        """Our deletion of pods that are bound to no node."""
        job = self.jobs.get(uid)
        for pod in pods:
            if job is not None and pod in job.pods and job.pods[pod].node is None:
                del job.pods[pod]

    def ungate(self, one: Ungate) -> None:
        """Our ungate; too late or twice changes nothing."""
        job = self.jobs.get(one.workload_uid)
        pod = job.pods.get(one.pod_uid) if job else None
        if job is None or pod is None or pod.is_terminating or not pod.is_gated:
            return
        self.target[one.pod_uid] = one.node
        job.pods[pod.uid] = replace(pod, is_gated=False)

    # --- what is seen of it ------------------------------------------------------------------

    def look(self, chance: float = 1.0) -> None:
        """Informers catch up, with each Job and with each Job's pods by itself."""
        for uid, job in self.jobs.items():
            if self.random.random() < chance:
                self.seen_job[uid] = replace(job, pods={})
            if self.random.random() < chance:
                self.seen_pods[uid] = tuple(job.pods.values())

    def seen(self) -> tuple[list[WorkloadSeen], dict[str, tuple[str, list[PodFact]]]]:
        """Workloads to be written, and those that are gone with the pods that are left."""
        present, gone = [], {}
        for uid, job in self.seen_job.items():
            pods = self.seen_pods.get(uid, ())
            if job.is_gone:
                gone[uid] = ("default", list(pods))
                continue
            succeeded = sum(pod.phase == "Succeeded" for pod in pods)
            wanted = max(0, min(job.wanted, job.left + succeeded))
            if job.pinned_to is not None and not job.result:
                wanted = job.left  # as ``pinning.without_pin`` sees it
            ended = job.ended | {
                p.index for p in pods if p.phase == "Succeeded" and p.index is not None
            }
            if job.is_indexed and not job.result:
                wanted = max(0, min(job.parallelism, job.completions - len(ended)))
            ranges: list[Range] = [(index, index + 1) for index in ended]
            if job.is_indexed:
                ranges.append((job.completions, None))
            one = workload(
                uid,
                job.asked,
                priority=job.priority,
                wanted=wanted,
                result=job.result,
                is_deleting=job.is_deleting,
                is_suspended=job.is_suspended,
                held_by="author"
                if job.is_held or (job.is_author_suspended and job.is_suspended)
                else None,
                has_hold=job.is_held,
                generation=job.generation,
                ended_indexes=as_multirange(ranges),
                is_pinnable=job.is_pinnable and job.asked.size == job.completions,
                pinned_to=job.pinned_to,
                depends_on=tuple({"type": kind, "job": name} for kind, name in job.depends_on),
                pods=tuple(sorted(pods, key=lambda p: p.uid)),
            )
            present.append(one)
        self.random.shuffle(present)
        return present, gone

    def _pick(self, wish: object) -> Job | None:
        found = [job for job in self.jobs.values() if wish(job)]  # type: ignore[operator]
        return self.random.choice(found) if found else None
