"""Plays the controllers of JobSets, MPIJobs and TrainJobs in one namespace, as the projects' own.

Used by tests that live with such objects for longer than a step or two. It reconciles: what it does
follows from what is there, so that whatever tests do to its objects, Jobs and pods, it goes on.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from fluxqueue.errors import ApiUnavailable, Conflict, Invalid, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, PODS, ApiResource
from tests.support.e2e.custom_kinds import JOB_SET, MPI_JOB, TRAIN_JOB, define
from tests.support.e2e.objects import Obj
from tests.support.e2e.owned_pods import job_of, pod_of, reference
from tests.support.e2e.space import Space

EVERY_S = 0.1


@dataclass(slots=True)
class Operators:
    """All of them, for as long as ``async with``. ``runtimes``: of each training runtime the spec
    of its JobSets. ``refused``: what the API server would not take of what they made. Tests expect
    nothing there.
    """

    space: Space
    runtimes: dict[str, Obj] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        for resource in (JOB_SET, MPI_JOB, TRAIN_JOB):
            await define(self.space, resource)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        while True:
            with suppress(ApiUnavailable):
                await self._look()
            await asyncio.sleep(EVERY_S)

    async def _look(self) -> None:
        client, name = self.space.client, self.space.name
        jobs = (await client.list(JOBS, name)).items
        pods = (await client.list(PODS, name)).items
        for resource, reconcile in (
            (JOB_SET, self._job_set),
            (MPI_JOB, self._mpi_job),
            (TRAIN_JOB, self._train_job),
        ):
            for owner in (await client.list(resource, name)).items:
                if "deletionTimestamp" in owner["metadata"]:
                    continue
                its_jobs, its_pods = _by_name(owner, jobs), _by_name(owner, pods)
                with suppress(Conflict, NotFound):
                    await reconcile(owner, its_jobs, its_pods)

    async def _job_set(self, owner: Obj, jobs: Mapping[str, Obj], _: Mapping[str, Obj]) -> None:
        """Its Jobs are made suspended where it is, and follow it. It ends with all, or the first
        that fails.
        """
        if _is_over(owner):
            for name, one in jobs.items():
                if not _is_over(one):
                    await self.space.delete(name)
            return
        is_suspended = bool(owner["spec"].get("suspend"))
        names = {
            f"{owner['metadata']['name']}-{part['name']}-{number}": _in_set(owner, part, number)
            for part in owner["spec"]["replicatedJobs"]
            for number in range(part["replicas"])
        }
        if any(_has(one, "Failed") for one in jobs.values()):
            await self._say(JOB_SET, owner, "Failed")
        elif all(name in jobs and _has(jobs[name], "Complete") for name in names):
            await self._say(JOB_SET, owner, "Completed")
        else:
            for name, spec in names.items():
                await self._follow(JOB_SET, owner, jobs, name, spec, is_suspended=is_suspended)

    async def _mpi_job(self, owner: Obj, jobs: Mapping[str, Obj], pods: Mapping[str, Obj]) -> None:
        """Its launcher is a Job, its workers are Pods, which go when the launcher has ended."""
        name, spec = owner["metadata"]["name"], owner["spec"]
        is_suspended = bool((spec.get("runPolicy") or {}).get("suspend"))
        launcher = jobs.get(f"{name}-launcher")
        if launcher is not None and _is_over(launcher) and not _is_over(owner):
            result = "Succeeded" if _has(launcher, "Complete") else "Failed"
            await self._say(MPI_JOB, owner, result)
        parts = spec["mpiReplicaSpecs"]
        wanted = 0 if is_suspended or _is_over(owner) else parts["Worker"]["replicas"]
        names = [f"{name}-worker-{number}" for number in range(wanted)]
        for pod_name, pod in pods.items():
            if pod_name not in names or pod["status"].get("phase") in {"Failed", "Succeeded"}:
                await self._remove(pod)
        for pod_name in names:
            if pod_name not in pods:
                made = pod_of(reference(MPI_JOB, owner), pod_name, parts["Worker"]["template"])
                await self._create(PODS, made)
        is_waiting = spec.get("launcherCreationPolicy") == "WaitForWorkersReady" and not (
            names and all(one in pods and _is_running(pods[one]) for one in names)
        )
        if not _is_over(owner) and (launcher is not None or not is_waiting):
            template = parts["Launcher"]["template"]
            of = {"parallelism": 1, "template": template}
            at = f"{name}-launcher"
            await self._follow(MPI_JOB, owner, jobs, at, of, is_suspended=is_suspended)

    async def _train_job(self, owner: Obj, _: Mapping[str, Obj], __: Mapping[str, Obj]) -> None:
        """Its JobSet has its name, is there at once, and is written anew until both have gone on.
        How that ends, it ends.
        """
        name = owner["metadata"]["name"]
        try:
            found = await self.space.client.get(JOB_SET, self.space.name, name)
        except NotFound:
            found = None
        for said, is_so in (("Completed", "Complete"), ("Failed", "Failed")):
            if found is not None and _has(found, said) and not _is_over(owner):
                await self._say(TRAIN_JOB, owner, is_so)
        is_suspended = bool(owner["spec"].get("suspend"))
        has_gone_on = found is not None and not found["spec"].get("suspend") and not is_suspended
        runtime = self.runtimes.get(owner["spec"]["runtimeRef"]["name"])
        if _is_over(owner) or has_gone_on or runtime is None:
            return
        await self._apply(_its_job_set(owner, runtime, is_suspended=is_suspended))

    async def _apply(self, body: Obj) -> None:
        at = (JOB_SET, self.space.name, body["metadata"]["name"])
        of = {"kind": PatchKind.APPLY, "field_manager": "trainer", "force": True}
        try:
            await self.space.client.patch(*at, body, **of)
        except Invalid as error:
            self.refused.append(f"{body['metadata']['name']}: {error}")

    async def _follow(
        self,
        resource: ApiResource,
        owner: Obj,
        jobs: Mapping[str, Obj],
        name: str,
        spec: Obj,
        *,
        is_suspended: bool,
    ) -> None:
        """A Job of it is there, and suspended as it is."""
        if name not in jobs:
            more = {"suspend": is_suspended, "backoffLimit": spec.get("backoffLimit", 50)}
            more |= {key: spec[key] for key in ("completionMode",) if key in spec}
            pods, template = spec["parallelism"], spec["template"]
            await self._create(
                JOBS, job_of(reference(resource, owner), name, template, pods=pods, **more)
            )
        elif bool(jobs[name]["spec"].get("suspend")) is not is_suspended and not _is_over(
            jobs[name]
        ):
            body = {"spec": {"suspend": is_suspended}}
            at = (JOBS, self.space.name, name)
            await self.space.client.patch(*at, body, kind=PatchKind.MERGE)

    async def _create(self, resource: ApiResource, body: Obj) -> None:
        try:
            await self.space.client.create(resource, self.space.name, body)
        except Invalid as error:
            self.refused.append(f"{body['metadata']['name']}: {error}")

    async def _remove(self, pod: Obj) -> None:
        if "deletionTimestamp" not in pod["metadata"]:
            await self.space.delete(pod["metadata"]["name"], PODS)

    async def _say(self, resource: ApiResource, owner: Obj, condition: str) -> None:
        told = {"reason": condition, "message": "", "lastTransitionTime": "2030-01-01T00:00:00Z"}
        conditions = [{"type": condition, "status": "True", **told}]
        body = {"metadata": {"uid": owner["metadata"]["uid"]}, "status": {"conditions": conditions}}
        at = (resource, self.space.name, owner["metadata"]["name"])
        await self.space.client.patch(*at, body, kind=PatchKind.MERGE)


def _in_set(owner: Obj, part: Obj, number: int) -> Obj:
    """The spec of a Job of a JobSet. Its pods bear the labels by which clients find them."""
    spec = copy.deepcopy(part["template"]["spec"])
    meta = spec["template"].setdefault("metadata", {})
    meta["labels"] = {
        **(meta.get("labels") or {}),
        "jobset.sigs.k8s.io/jobset-name": owner["metadata"]["name"],
        "jobset.sigs.k8s.io/replicatedjob-name": part["name"],
        "jobset.sigs.k8s.io/job-index": str(number),
    }
    return spec


def _its_job_set(owner: Obj, runtime: Obj, *, is_suspended: bool) -> Obj:
    """As the Trainer makes it of a runtime, and of what the TrainJob says of that."""
    labels: Obj = {}
    for patch in owner["spec"].get("runtimePatches") or ():
        template = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        labels |= (template.get("metadata") or {}).get("labels") or {}
    spec = copy.deepcopy(runtime)
    nodes = (owner["spec"].get("trainer") or {}).get("numNodes")
    for part in spec["replicatedJobs"]:
        if part["name"] == "node" and nodes is not None:
            part["template"]["spec"]["parallelism"] = nodes
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.kind,
        "metadata": {
            "name": owner["metadata"]["name"],
            "labels": labels,
            "ownerReferences": [reference(TRAIN_JOB, owner)],
        },
        "spec": spec | {"suspend": is_suspended},
    }


def _by_name(owner: Obj, objects: list[Obj]) -> dict[str, Obj]:
    uid = owner["metadata"]["uid"]
    return {
        one["metadata"]["name"]: one
        for one in objects
        if any(of["uid"] == uid for of in one["metadata"].get("ownerReferences") or ())
    }


def _has(obj: Obj, *conditions: str) -> bool:
    found = (obj.get("status") or {}).get("conditions") or ()
    return any(one["type"] in conditions and one["status"] == "True" for one in found)


def _is_running(pod: Obj) -> bool:
    return bool(pod["status"].get("phase") == "Running")


def _is_over(obj: Obj) -> bool:
    return _has(obj, "Complete", "Completed", "Succeeded", "Failed")
