"""Random lives of every kind of workload, drawn from a seed: what users, nodes and accidents do.

``Lives`` holds what there should be by now, and does one thing after another to it. Nothing waits
for the cluster but where a name has to be free. ``until_settled`` says what is not as it should be.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from fluxqueue.errors import (
    ApiUnavailable,
    Conflict,
    DatabaseUnavailable,
    NotFound,
)
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import (
    DEPLOYMENTS,
    FLUXJOBS,
    JOBS,
    NODES,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    ApiResource,
)
from localcluster import NodeShape
from tests.support import steering
from tests.support.e2e import database
from tests.support.e2e.custom_kinds import JOB_SET, MPI_JOB, TRAIN_JOB
from tests.support.e2e.kills import kill_part, kill_postgres
from tests.support.e2e.objects import Obj, bare_pod, job
from tests.support.e2e.operators import Operators
from tests.support.e2e.owned_pods import ASKS, MAIN, template
from tests.support.e2e.replica_sets import a_set
from tests.support.e2e.space import Space, elapsed_s
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually, until

NAMES = tuple(f"w{number}" for number in range(6))
"""Few, so that they are used again and again, by workloads of other kinds, too."""
BRITTLE = {
    name: NodeShape(name, cpu="16", memory="64Gi", labels=MAIN) for name in ("late-1", "late-2")
}
"""Nodes that are lost and come back, beside the four of the pool that stay."""
SIZE_MAX = 5
ROOM_CPU = 48
"""Of the 64 that stay: so much, in pods of at most 4, runs at once wherever they are."""

POD_GROUP = ApiResource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup", True)
"""Kubernetes' own. A real cluster may serve another version (``served_group``)."""
SETS = {"Deployment": DEPLOYMENTS, "ReplicaSet": REPLICASETS, "StatefulSet": STATEFULSETS}
OWNERS = {"JobSet": JOB_SET, "MPIJob": MPI_JOB, "TrainJob": TRAIN_JOB}
RESOURCES = {"Job": JOBS, "Pod": PODS, **SETS, **OWNERS}
GROUPS = ("Group", "NativeGroup")
KINDS = ("Job", "Job", "Pod", "Group", *SETS, *OWNERS)
SUSPEND = {
    "Job": lambda value: {"suspend": value},
    "JobSet": lambda value: {"suspend": value},
    "MPIJob": lambda value: {"runPolicy": {"suspend": value}},
    "TrainJob": lambda value: {"suspend": value},
}
FINAL = {"Completed", "Failed", "Cancelled"}
VERBS = {
    "create": 10,
    "scale": 4,
    "suspend": 2,
    "resume": 2,
    "roll": 3,
    "lose_pod": 4,
    "delete": 3,
    "orphan": 0.7,
    "delete_fluxjob": 1,
    "hold": 1,
    "release": 2,
    "requeue": 2,
    "cancel": 1,
    "cordon": 1,
    "lose_node": 1.5,
    "silence_node": 0.7,
    "kill": 1.5,
    "lose_database": 0.3,
}
"""How often each is drawn, relative to the others."""
UNADDRESSED = {"create", "cordon", "lose_node", "silence_node", "kill", "lose_database"}
"""Those that are done to no workload."""


async def served_group(client: KubeClient) -> ApiResource:
    """Return PodGroups of Kubernetes in the version that is served."""
    (found,) = await find_served(client, {(POD_GROUP.group, POD_GROUP.kind)})
    return found


@dataclass(slots=True)
class Life:
    """A workload as it should be: ``size`` pods of ``cpu``. ``members``: the pods of a group."""

    name: str
    kind: str
    uid: str
    size: int
    cpu: int
    ends: bool
    is_suspended: bool = False
    is_indexed: bool = False
    version: int = 0
    members: list[str] = field(default_factory=list)
    made: int = 0

    @property
    def demand_cpu(self) -> int:
        """What it keeps for good."""
        extra = 1 if self.kind in OWNERS else 0
        return 0 if self.ends else (self.size + extra) * self.cpu


@dataclass(slots=True)
class Lives:
    """Everything that there is, and what was done to it, in ``log``."""

    space: Space
    operators: Operators
    die: random.Random
    kinds: Sequence[str] = KINDS
    there: dict[str, Life] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)
    nodes: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    cordoned: set[str] = field(default_factory=set)

    async def step(self) -> None:
        """Do one thing, if that can be done to something that is there."""
        die = self.die
        verb = die.choices(list(VERBS), weights=list(VERBS.values()))[0]
        act: Callable[[Life], Awaitable[None]] | Callable[[], Awaitable[None]]
        act = getattr(self, f"_{verb}")
        if verb in UNADDRESSED:
            await act()  # type: ignore[call-arg]
        elif self.there:
            life = self.there[die.choice(sorted(self.there))]
            with suppress(NotFound):
                await act(life)  # type: ignore[call-arg]
        if die.random() < 0.6:
            await asyncio.sleep(die.uniform(0, 0.8))

    def _note(self, what: str) -> None:
        self.log.append(f"{elapsed_s(self.began_s):6.1f} s  {what}")

    # --- making ---------------------------------------------------------------------------------

    async def _create(self) -> None:
        free = [name for name in NAMES if name not in self.there]
        if not free:
            return
        die = self.die
        name, kind = die.choice(free), die.choice(self.kinds)
        ends = kind not in SETS and die.random() < 0.6
        life = Life(name, kind, "", die.randint(1, 4), die.choice((1, 2, 4)), ends)
        if kind in GROUPS:
            life.size = max(2, life.size)
            await self._make_group(life)
        else:
            body = self._body(life)
            life.is_suspended = kind in SUSPEND and die.random() < 0.15
            if life.is_suspended:
                body["spec"] = _merged(body["spec"], SUSPEND[kind](True))
            self._note(f"create {life}")
            made = await self._patiently(RESOURCES[kind], body)
            life.uid = made["metadata"]["uid"]
        self.there[name] = life

    def _body(self, life: Life) -> Obj:
        die, run = self.die, self._run(life)
        wishes = {"priority": str(die.randint(0, 3))} if die.random() < 0.3 else {}
        wishes |= {"duration": "10m"} if die.random() < 0.4 and life.ends else {}
        cpu, name = str(life.cpu), life.name
        if life.kind == "Pod":
            life.size = 1
            return bare_pod(name, cpu=cpu, run=run, nodeSelector=MAIN)
        if life.kind == "Job":
            life.is_indexed = die.random() < 0.5
            more: Obj = {"completionMode": "Indexed"} if life.is_indexed else {}
            if not life.ends and not life.is_indexed:
                more["completions"] = SIZE_MAX  # which cannot be changed
            more["backoffLimit"] = 0 if "exit-code" in run else 50
            wishes |= {"on-node-loss": "requeue"} if die.random() < 0.3 else {}
            if die.random() < 0.2 and life.ends:
                more["completions"] = life.size + die.randint(0, 3)
            return job(name, pods=life.size, cpu=cpu, pool="main", run=run, wishes=wishes, **more)
        if life.kind in SETS:
            more = {"podManagementPolicy": "Parallel"} if life.kind == "StatefulSet" else {}
            more = more if die.random() < 0.5 else {}
            return a_set(SETS[life.kind], name, replicas=life.size, cpu=cpu, **more)
        of = template(cpu=cpu, run=run)
        if life.kind == "JobSet":
            spec = job_set_spec(a=(1, of), b=(life.size, of))
        elif life.kind == "TrainJob":
            runtime = f"{name}-{len(self.operators.runtimes)}"
            self.operators.runtimes[runtime] = job_set_spec(a=(1, of), node=(1, of))
            spec = {"runtimeRef": {"name": runtime}, "trainer": {"numNodes": life.size}}
        else:
            parts = {"Launcher": (1, of), "Worker": (life.size, template(cpu=cpu, run=_FOR_EVER))}
            replicas = {key: {"replicas": n, "template": of} for key, (n, of) in parts.items()}
            spec = {"mpiReplicaSpecs": replicas}
        meta = {"name": name, "labels": ASKS}
        meta["annotations"] = {f"fluxqueue/{key}": value for key, value in wishes.items()}
        version, kind = RESOURCES[life.kind].api_version, life.kind
        return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}

    def _run(self, life: Life) -> dict[str, str]:
        if not life.ends:
            return _FOR_EVER
        run = {"duration": f"{self.die.randrange(100, 1500)}ms"}
        if life.kind == "Job" and self.die.random() < 0.3:
            run |= self.die.choice(({"fail-times": "1"}, {"exit-code": "3"}))
        return run

    async def _make_group(self, life: Life) -> None:
        self._note(f"create {life}")
        if life.kind == "NativeGroup":
            kind = await served_group(self.space.client)
            body: Obj = {"apiVersion": kind.api_version, "kind": kind.kind}
            spec = {"schedulingPolicy": {"gang": {"minCount": life.size}}}
            body |= {"metadata": {"name": life.name}, "spec": spec}
            await self._patiently(kind, body)
        for _ in range(life.size if self.die.random() < 0.8 else life.size - 1):
            await self._add_member(life)

    async def _add_member(self, life: Life) -> None:
        name = f"{life.name}-m{life.made}"
        life.made += 1
        pod = bare_pod(name, cpu=str(life.cpu), run=self._run(life), nodeSelector=MAIN)
        if life.kind == "NativeGroup":
            pod["spec"]["schedulingGroup"] = {"podGroupName": life.name}
        else:
            size = f"{life.size}-{life.size + 4}"
            marks = {"fluxqueue/pod-group": life.name, "fluxqueue/group-size": size}
            pod["metadata"]["labels"] = marks
        await self._patiently(PODS, pod)
        life.members.append(name)

    async def _patiently(self, resource: ApiResource, body: Obj) -> Obj:
        """As a user tries again while the webhook is away, or the name is still another's."""
        made: Obj = {}

        async def attempt() -> bool:
            with suppress(Conflict, ApiUnavailable):
                made.update(await self.space.client.create(resource, self.space.name, body))
            return bool(made)

        await eventually(attempt, f"{resource.kind} {body['metadata']['name']} made")
        return made

    # --- changing -------------------------------------------------------------------------------

    async def _scale(self, life: Life) -> None:
        if life.kind in GROUPS:
            self._note(f"one more of {life.name}")
            await self._add_member(life)
            return
        if life.kind in {"Pod", "JobSet", "TrainJob"} or (life.kind == "Job" and life.ends):
            return
        life.size = self.die.randint(1, SIZE_MAX)
        self._note(f"scale {life.kind} {life.name} to {life.size}")
        body: Obj = {"replicas": life.size}
        if life.kind == "Job":
            body = {"parallelism": life.size}
            body |= {"completions": life.size} if life.is_indexed else {}
        if life.kind == "MPIJob":
            body = {"mpiReplicaSpecs": {"Worker": {"replicas": life.size}}}
        await self._change(life, body)

    async def _change(self, life: Life, spec: Obj) -> None:
        at = (RESOURCES[life.kind], self.space.name, life.name)

        async def attempt() -> bool:
            with suppress(ApiUnavailable, Conflict):
                await self.space.client.patch(*at, {"spec": spec}, kind=PatchKind.MERGE)
                return True
            return False

        with suppress(NotFound):
            await eventually(attempt, f"{life.kind} {life.name} changed")

    async def _suspend(self, life: Life) -> None:
        await self._set_suspended(life, is_suspended=True)

    async def _resume(self, life: Life) -> None:
        if life.is_suspended:
            await self._set_suspended(life, is_suspended=False)

    async def _set_suspended(self, life: Life, *, is_suspended: bool) -> None:
        if life.kind in SUSPEND:
            self._note(f"{'suspend' if is_suspended else 'resume'} {life.kind} {life.name}")
            await self._change(life, SUSPEND[life.kind](is_suspended))
            life.is_suspended = is_suspended

    async def _roll(self, life: Life) -> None:
        """A new template, which may ask for another size."""
        if life.kind not in {"Deployment", "StatefulSet"}:
            return
        life.version += 1
        life.cpu = self.die.choice((1, 2, 4))
        self._note(f"roll {life.name} to version {life.version}, cpu {life.cpu}")
        requests = {"resources": {"requests": {"cpu": str(life.cpu)}}}
        containers = [{"name": "m", "image": "none", **requests}]
        notes = {"annotations": {"version": str(life.version)}}
        await self._change(
            life, {"template": {"metadata": notes, "spec": {"containers": containers}}}
        )

    async def _lose_pod(self, life: Life) -> None:
        pods = sorted(pod["metadata"]["name"] for pod in await self._pods(life))
        if not pods:
            return
        name = self.die.choice(pods)
        is_evicted = self.die.random() < 0.4
        self._note(f"{'evict' if is_evicted else 'delete'} pod {name}")
        if is_evicted:
            kind = {"apiVersion": "policy/v1", "kind": "Eviction"}
            path = PODS.path(self.space.name, name, "eviction")
            body = {**kind, "metadata": {"name": name}}
            await self.space.client.request("POST", path, body=body)
        else:
            await self.space.delete(name, PODS)
        if life.kind == "Pod":
            self.there.pop(life.name, None)
        if name in life.members:
            life.members.remove(name)

    async def _delete(self, life: Life) -> None:
        how = self.die.choice(("Background", "Background", "Foreground"))
        self._note(f"delete {life.kind} {life.name} ({how})")
        await self.remove(life, how)

    async def remove(self, life: Life, how: str = "Background") -> None:
        """It goes, and what it has made. Its name is free when that is gone."""
        self.there.pop(life.name, None)
        client, space = self.space.client, self.space.name
        for member in life.members:
            with suppress(NotFound):
                await self.space.delete(member, PODS)
        if life.kind == "NativeGroup":
            await client.delete(await served_group(client), space, life.name)
        elif life.kind != "Group":
            with suppress(NotFound):
                await client.delete(RESOURCES[life.kind], space, life.name, propagation=how)

    async def _orphan(self, life: Life) -> None:
        """It goes and leaves its pods behind, which are unmanaged and run on."""
        if life.kind in {"Job", "ReplicaSet"}:
            self._note(f"orphan the pods of {life.kind} {life.name}")
            await self.remove(life, "Orphan")

    # --- steering -------------------------------------------------------------------------------

    async def _delete_fluxjob(self, life: Life) -> None:
        """Which cancels what can be cancelled, and is made again of what cannot, or if no one was
        there to see it.
        """
        found = await self._fluxjob(life)
        if found is None or (found.get("status") or {}).get("state") in FINAL:
            return
        name, uid = found["metadata"]["name"], found["spec"]["workload"]["uid"]
        self._note(f"delete FluxJob {name}")
        await self.space.client.delete(FLUXJOBS, self.space.name, name)

        async def is_decided() -> str:
            fluxjobs = (await self.space.client.list(FLUXJOBS, self.space.name)).items
            others = [one for one in fluxjobs if one["metadata"]["uid"] != found["metadata"]["uid"]]
            if any(one["spec"]["workload"]["uid"] == uid for one in others):
                return "made again"
            return "" if await self._is_there(life) else "gone"

        if await eventually(is_decided, f"{name} is made again, or {life.name} gone") == "gone":
            await self._until_cancelled(life)

    async def _is_there(self, life: Life) -> bool:
        if life.kind in GROUPS:  # pods that have ended stay
            phases = [pod["status"].get("phase") for pod in await self._pods(life)]
            return not {"Pending", "Running"}.isdisjoint(phases)
        try:
            found = await self.space.client.get(RESOURCES[life.kind], self.space.name, life.name)
        except NotFound:
            return False
        return "deletionTimestamp" not in found["metadata"]

    async def _cancel(self, life: Life) -> None:
        if await self._steer("cancel", life):
            await self._until_cancelled(life)

    async def _until_cancelled(self, life: Life) -> None:
        if life.kind in GROUPS:
            await self.remove(life)
        self.there.pop(life.name, None)

    async def _hold(self, life: Life) -> None:
        await self._steer("hold", life)

    async def _release(self, life: Life) -> None:
        await self._steer("release", life)

    async def _requeue(self, life: Life) -> None:
        await self._steer("requeue", life)

    async def _steer(self, verb: str, life: Life) -> bool:
        found = await self._fluxjob(life)
        if found is None:
            return False
        name, rows = found["metadata"]["name"], self.space.world.database
        with suppress(DatabaseUnavailable):
            for said in await getattr(steering, verb)(rows, self.space.name, [name], "ada"):
                self._note(f"{verb} {name}: {said.message}")
                return bool(said.is_done)
        return False

    # --- accidents ------------------------------------------------------------------------------

    async def _cordon(self) -> None:
        await self._set_cordoned(self.die.choice(("node-1", "node-2", "node-3")))

    async def _set_cordoned(self, name: str) -> None:
        self.cordoned ^= {name}
        is_cordoned = name in self.cordoned
        self._note(f"{'cordon' if is_cordoned else 'uncordon'} {name}")
        body = {"spec": {"unschedulable": is_cordoned}}
        await self.space.client.patch(NODES, None, name, body, kind=PatchKind.MERGE)

    async def _lose_node(self) -> None:
        """Or bring it back."""
        name = self.die.choice(sorted(BRITTLE))
        if name in self.nodes:
            await self.lose_node(name)
        else:
            self._note(f"add node {name}")
            await self.space.world.late_nodes.add(BRITTLE[name])
            self.nodes.add(name)

    async def lose_node(self, name: str) -> None:
        """It is gone, and its pods with it."""
        self._note(f"lose node {name}")
        await self.space.world.late_nodes.fleet.remove(name)
        self.nodes.discard(name)
        self.silent.discard(name)

    async def _silence_node(self) -> None:
        """Its kubelet is dead, or lives again."""
        name, fleet = self.die.choice(sorted(BRITTLE)), self.space.world.late_nodes.fleet
        if name in self.silent:
            self._note(f"revive node {name}")
            await fleet.revive(name)
            self.silent.discard(name)
        elif name in self.nodes:
            self._note(f"silence node {name}")
            fleet.silence(name)
            self.silent.add(name)

    async def _lose_database(self) -> None:
        """All rows, while everything runs."""
        self._note("lose the database")
        world = self.space.world

        async def attempt() -> bool:
            with suppress(psycopg.Error, SQLAlchemyError, DatabaseUnavailable, OSError):
                await database.empty(world.stack)
                return True
            return False

        await eventually(attempt, "the database is another")

    async def _kill(self) -> None:
        part = self.die.choice(("controller", "worker-0", "worker-1", "webhook", "postgres"))
        self._note(f"kill {part}")
        world = self.space.world
        await (kill_postgres(world) if part == "postgres" else kill_part(world, part))

    # --- looking --------------------------------------------------------------------------------

    async def _pods(self, life: Life) -> list[Obj]:
        """Those that are not on their way out."""
        pods = (await self.space.client.list(PODS, self.space.name)).items
        return [
            pod
            for pod in pods
            if _whose(pod["metadata"]["name"]) == life.name
            and "deletionTimestamp" not in pod["metadata"]
        ]

    async def _fluxjob(self, life: Life) -> Obj | None:
        """Its FluxJob, the last of its name: the UID of what its pods stand for is not known."""
        kind = "PodGroup" if life.kind in GROUPS else life.kind
        found = [
            one
            for one in (await self.space.client.list(FLUXJOBS, self.space.name)).items
            if "deletionTimestamp" not in one["metadata"]
            for of in [one["spec"]["workload"]]
            if (of["name"], of["kind"]) == (life.name, kind)
            if life.kind not in {"Job", "Pod"} or life.uid == of["uid"]
        ]
        return max(found, key=lambda one: one["metadata"]["creationTimestamp"], default=None)

    # --- the end --------------------------------------------------------------------------------

    async def make_peace(self) -> None:
        """Nothing is held, suspended or broken any more, and there is room for what stays."""
        for name in sorted(self.cordoned):
            await self._set_cordoned(name)
        for name in sorted(self.nodes):
            await self.lose_node(name)
        for life in list(self.there.values()):
            await self._resume(life)
        await self._remove_orphans()
        staying = sorted(self.there.values(), key=lambda life: life.name)
        while sum(life.demand_cpu for life in staying) > ROOM_CPU:
            life = staying.pop()
            if not life.ends:
                self._note(f"delete {life.kind} {life.name}, to make room")
                await self.remove(life)

    async def _remove_orphans(self) -> None:
        known = {member for life in self.there.values() for member in life.members}
        for pod in (await self.space.client.list(PODS, self.space.name)).items:
            name = pod["metadata"]["name"]
            if "-" in name and name not in known and not pod["metadata"].get("ownerReferences"):
                with suppress(NotFound):
                    await self.space.delete(name, PODS)

    async def until_settled(self, timeout_s: float) -> None:
        """What ends has ended. What stays runs, all of it. Jobs wait only for missing pods."""
        self._note("peace")

        async def wrong() -> list[str]:
            with suppress(ApiUnavailable, DatabaseUnavailable):
                await self._release_all()
                return [one for life in self.there.values() for one in await self._wrong(life)]
            return ["no answer"]

        await until(wrong, lambda left: not left, "all lives are settled", timeout_s=timeout_s)
        assert not self.operators.refused, self.operators.refused
        self._note("settled")

    async def _release_all(self) -> None:
        for life in self.there.values():
            found = await self._fluxjob(life)
            if found and (found.get("status") or {}).get("state") == "Held":
                await self._release(life)

    async def _wrong(self, life: Life) -> list[str]:
        found = await self._fluxjob(life)
        status = (found or {}).get("status") or {}
        state = status.get("state")
        phases = Counter(pod["status"].get("phase", "Pending") for pod in await self._pods(life))
        left = phases["Pending"] + phases["Running"]
        said = f"{life}: FluxJob {state}: {status.get('reason')}; pods {dict(phases)}"
        if life.kind in GROUPS or life.kind == "Pod":
            is_waiting = state == "Gathering" or (found is None and not left)
            is_settled = not left if life.ends else not phases["Pending"]
            return [] if is_waiting or is_settled else [said]
        if life.ends:
            return [] if state in FINAL and not left else [said]
        wanted = life.size + (1 if life.kind in OWNERS else 0)
        is_running = phases["Running"] == wanted and not phases["Pending"] and state == "Running"
        return [] if is_running else [said]


_FOR_EVER = {"never-ends": "true"}


def _whose(pod: str) -> str:
    return pod.partition("-")[0]


def _merged(one: Obj, other: Obj) -> Obj:
    return {
        **one,
        **{k: {**one.get(k, {}), **v} if isinstance(v, dict) else v for k, v in other.items()},
    }
