"""A small world for the stateful model test: Jobs, pods and nodes as they are and as seen.

Plays API server, Job controller, scheduler and node agents in memory. Only the rows are real. What
the controller sees of a Job and of its pods lags behind the truth, each by itself. Everything is
drawn from one seeded generator, so a seed is a story that can be repeated.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

from fluxqueue.db.store.desired_state import DesiredState
from fluxqueue.db.store.reconciling import Ungate
from fluxqueue.fluxjob.indexes import Range, as_multirange
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.model import RFC14, SLOT
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.shape import slot_kinds
from tests.support.pool_model import request
from tests.support.rows import cpu_node, workload

NODES = {"n0": 4, "n1": 4, "n2": 6}


@dataclass
class Job:
    """A Job as it is. ``left``: completions still to come. ``ended``: indexes that have."""

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
    active: int = 0
    """Pods that have not ended, in a Job as it was seen."""
    to_come: tuple[str, ...] | None = None
    """Of a group: the kinds of slots of the pods that have yet to come. None is a real Job."""
    has_failed: bool = False

    @property
    def wanted(self) -> int:
        """Pods it may run at once."""
        return 0 if self.result else min(self.parallelism, self.left)

    @property
    def is_group(self) -> bool:
        """Whether no object stands for it: its pods come by themselves, gated."""
        return self.to_come is not None

    def needs(self, pod: PodFact) -> int:
        """Cpu of a pod."""
        kinds = slot_kinds(self.asked)
        kind = next((one for one in kinds if one.label == pod.kind), kinds[0])
        return dict(kind.needs)[CPU]

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
        """A new Job. Some never fit, some are of size 0, some suspended by their author."""
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

    def gather(self) -> None:
        """A new group of unequal pods, none of which has come. Some of them never fit."""
        self.made += 1
        draw = self.random
        small, large = draw.choice((1, 2)), draw.choice((3, 4))
        counts = {"small": draw.choice((1, 2)), "large": draw.choice((0, 1, 1))}
        cpus = {"small": small, "large": large}
        asked = Jobspec(
            RFC14,
            tuple(
                Resource(
                    SLOT,
                    Count(count, count),
                    (Resource(CPU, Count(cpus[kind], cpus[kind])),),
                    label=kind,
                )
                for kind, count in counts.items()
            ),
        )
        uid = f"{draw.randrange(10**6):06}-{self.made}"
        coming = [kind for kind, count in counts.items() for _ in range(count)]
        draw.shuffle(coming)
        self.jobs[uid] = Job(
            uid,
            asked,
            draw.choice((0, 0, 5)),
            left=len(coming),
            parallelism=len(coming),
            is_suspended=False,
            depends_on=self._edges(),
            to_come=tuple(coming),
        )

    def drop(self) -> None:
        """Someone deletes a pod of a group. While it waits another comes in its place."""
        if job := self._pick(lambda j: j.is_group and j.pods and not j.is_deleting):
            pod = self.random.choice(sorted(job.pods.values(), key=lambda p: p.uid))
            is_waiting = all(one.is_gated for one in job.pods.values())
            if pod.node is None:
                del job.pods[pod.uid]
            else:
                job.pods[pod.uid] = replace(pod, is_terminating=True)
            if is_waiting and job.to_come is not None:
                job.to_come += (pod.kind,)

    def send_again(self, uid: str, missing: int) -> None:
        """A user who sees how many pods the group misses makes those that it has lost."""
        job = self.jobs[uid]
        if job.to_come or job.is_deleting:
            return
        lost = Counter({kind.label: kind.count for kind in slot_kinds(job.asked)})
        lost.subtract(
            pod.kind for pod in job.pods.values() if not (pod.is_terminal or pod.is_terminating)
        )
        job.to_come = tuple((+lost).elements())[:missing]

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
        """An author suspends a Job that we have started."""
        if job := self._pick(
            lambda j: not (j.is_suspended or j.is_deleting or j.result or j.is_group)
        ):
            self._set_suspend(job, True)
            self.stopped.add(job.uid)
            self.disturbed.add(job.uid)

    def _set_suspend(self, job: Job, is_suspended: bool) -> None:
        if job.is_suspended != is_suspended:
            job.is_suspended, job.generation = is_suspended, job.generation + 1

    def delete(self) -> None:
        """Someone deletes a Job. Its pods are asked to go."""
        if job := self._pick(lambda j: not j.is_deleting):
            job.is_deleting = True
            for pod in job.pods.values():
                job.pods[pod.uid] = replace(pod, is_terminating=True)

    def unsuspend(self) -> None:
        """An author releases a Job, or resumes one."""
        if job := self._pick(lambda j: j.is_author_suspended):
            job.is_author_suspended = False
            self._set_suspend(job, False)
        elif job := self._pick(lambda j: j.uid in self.stopped):
            self.stopped.discard(job.uid)
            self._set_suspend(job, False)

    def scale(self) -> None:
        """Another parallelism."""
        if job := self._pick(lambda j: not (j.result or j.is_deleting or j.is_group)):
            wanted = self.random.choice((1, 2, 3))
            # The policies refuse more pods of a template that names a node.
            is_fixed = job.pinned_to is not None and not job.is_suspended
            if is_fixed and job.parallelism < min(wanted, job.completions):
                return
            job.parallelism = wanted
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
            if job.is_group:
                self._run_group(job)
                continue
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

    def _run_group(self, job: Job) -> None:
        """Its next pod comes. With the last one that may run it is over, or gone with it."""
        assert job.to_come is not None
        if job.is_deleting:
            job.pods = {u: p for u, p in job.pods.items() if p.node is not None}
        elif job.to_come and self.random.random() < 0.7:
            self.made += 1
            kind, *rest = job.to_come
            uid = f"p{self.made}"
            job.pods[uid] = PodFact(uid, uid, "Pending", True, kind=kind)
            job.to_come = tuple(rest)
        live = [pod for pod in job.pods.values() if not pod.is_terminal]
        if not job.to_come and not live and not job.is_deleting and not job.result:
            has_ended = job.pods or self.ended[job.uid]
            job.result = "Failed" if job.has_failed else "Completed" if has_ended else None
            job.is_deleting |= not has_ended
        if (job.is_deleting or job.result) and not job.pods:
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
        """The scheduler binds where there is room. The node agent starts it."""
        name = self.target.get(pod.uid)
        if pod.is_gated or pod.node or name not in self.nodes or pod.is_terminating:
            return
        fact = self.nodes[name]
        need = job.needs(pod)
        ours, others = self.used(name), self.foreign.get(name, 0)
        # The next pod of a pinned Job comes before the one that it replaces has gone, and
        # may be bound before those that fit without that one. One
        # that is deleted before its pods were seen has given back their room: the scheduler waits.
        ours -= sum(map(self._replaced, self.jobs.values(), repeat(name)))
        is_early = (job.pinned_to and any(p.is_terminating for p in job.pods.values())) or any(
            other.is_deleting and other.pinned_to == name and other.pods
            for other in self.jobs.values()
        )
        is_room = ours + need <= fact.capacity[CPU]
        assert is_room or is_early, f"{pod.uid} was let go to {name}, which is full"
        ours = self.used(name)
        if fact.is_up and fact.is_schedulable and ours + others + need <= fact.capacity[CPU]:
            job.pods[pod.uid] = replace(pod, node=name, phase="Running")

    @staticmethod
    def _replaced(job: Job, name: str) -> int:
        """Cpu on a node of pods of a pinned Job that go, and were replaced by others."""
        if job.pinned_to != name:
            return 0
        here = [pod for pod in job.pods.values() if pod.node == name and not pod.is_terminal]
        going = [pod for pod in here if pod.is_terminating]
        return sum(map(job.needs, going[: len(here) - len(going)]))

    def used(self, name: str) -> int:
        """Cpu of our pods that are bound to the node and not over."""
        return sum(
            job.needs(pod)
            for job in self.jobs.values()
            for pod in job.pods.values()
            if pod.node == name and not pod.is_terminal
        )

    def run_pods(self, chance: float = 0.3) -> None:
        """Running pods succeed or fail. Terminating and ended ones disappear."""
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
                    job.has_failed |= not ok
                    self.ended[job.uid] += 1
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

    def make(self, wanted: DesiredState) -> Job | None:
        """Our release: the Job is made what the row wants. Gives it, if it could be.

        A repeat changes nothing.
        """
        job = self.jobs.get(wanted.uid)
        if job is None or job.is_gone:
            return None
        if wanted.is_deleted and job.is_group:
            for uid, _ in wanted.members:
                if uid in job.pods:
                    job.pods[uid] = replace(job.pods[uid], is_terminating=True)
            job.is_deleting, job.to_come = True, ()
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
            job.pinned_to = wanted.pin.name if wanted.pin else None
        self._set_suspend(job, wanted.is_suspended)
        return job if job.pinned_to is None or not wanted.is_suspended else None

    def let_go_in(self, uid: str) -> int | None:
        """The last generation in which a Job is, or may have been, started."""
        job = self.jobs.get(uid)
        return None if job is None else job.generation - job.is_suspended

    def evict(self, uid: str, pods: Sequence[str]) -> None:
        """Our deletion of pods that are bound to no node."""
        job = self.jobs.get(uid)
        for pod in pods:
            if job is not None and pod in job.pods and job.pods[pod].node is None:
                del job.pods[pod]

    def ungate(self, one: Ungate) -> None:
        """Our ungate. Too late or twice changes nothing."""
        job = self.jobs.get(one.workload_uid)
        pod = job.pods.get(one.pod_uid) if job else None
        if job is None or pod is None or pod.is_terminating or not pod.is_gated:
            return
        self.target[one.pod_uid] = one.to.name
        job.pods[pod.uid] = replace(pod, is_gated=False)

    # --- what is seen of it ------------------------------------------------------------------

    def look(self, chance: float = 1.0) -> None:
        """Informers catch up, with each Job and with each Job's pods by itself."""
        for uid, job in self.jobs.items():
            if self.random.random() < chance:
                active = sum(not pod.is_terminal for pod in job.pods.values())
                self.seen_job[uid] = replace(job, pods={}, active=active)
            if self.random.random() < chance:
                self.seen_pods[uid] = tuple(job.pods.values())

    def seen(self) -> tuple[list[WorkloadSeen], dict[str, WorkloadGone]]:
        """Workloads to be written, and those that are gone with the pods that are left."""
        present, gone = [], {}
        for uid, job in self.seen_job.items():
            pods = self.seen_pods.get(uid, ())
            if job.is_gone:
                gone[uid] = WorkloadGone("default", tuple(pods))
                continue
            if job.is_group:
                present += self._see_group(job, pods)
                continue
            succeeded = sum(pod.phase == "Succeeded" for pod in pods)
            wanted = max(0, min(job.wanted, job.left + succeeded))
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
                is_idle=job.is_suspended and not job.active,
                ended_indexes=as_multirange(ranges),
                is_pinnable=job.is_pinnable and job.asked.size == job.completions,
                pinned_to=job.pinned_to,
                depends_on=tuple({"type": kind, "job": name} for kind, name in job.depends_on),
                pods=tuple(sorted(pods, key=lambda p: p.uid)),
            )
            present.append(one)
        self.random.shuffle(present)
        return present, gone

    def _see_group(self, job: Job, pods: Sequence[PodFact]) -> list[WorkloadSeen]:
        """As ``kinds.pod_group`` tells of its pods. A group without any is not seen."""
        live = [pod for pod in pods if not pod.is_terminal]
        staying = [pod for pod in live if not pod.is_terminating]
        if not pods and not job.result:
            return []
        missing = max(0, job.parallelism - len(staying))
        is_over = not live and job.result is not None
        one = workload(
            job.uid,
            job.asked,
            workload_kind="PodGroup",
            is_suspendable=False,
            replaces_pods=False,
            is_gathered=True,
            is_suspended=False,
            priority=job.priority,
            missing=missing,
            gather_reason=f"missing {missing}",
            gather_s=600,
            further=render(job.asked),
            wanted=len(staying),
            result=job.result if is_over else None,
            is_deleting=job.is_deleting,
            held_by="author" if job.is_held else None,
            has_hold=job.is_held,
            depends_on=tuple({"type": kind, "job": name} for kind, name in job.depends_on),
            pods=tuple(sorted(pods, key=lambda p: p.uid)),
        )
        return [one]

    def _pick(self, wish: object) -> Job | None:
        found = [job for job in self.jobs.values() if wish(job)]  # type: ignore[operator]
        return self.random.choice(found) if found else None
