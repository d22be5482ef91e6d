"""``Space``: a namespace of one test, with the verbs of a user and what to wait for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import ApiUnavailable, Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    EVENTS,
    FLUXJOBS,
    JOBS,
    NAMESPACES,
    PODS,
    SERVICE_ACCOUNTS,
    ApiResource,
)
from tests.support.e2e.objects import NOTE, Obj
from tests.support.e2e.recording import Recording
from tests.support.e2e.world import World
from tests.support.waiting import WAIT_S, eventually, until

WAITING = ("Pending", "Reserved")
_RESOURCES = {"Job": JOBS, "Pod": PODS}


@dataclass(frozen=True, slots=True)
class Space:
    """A namespace and the world around it."""

    world: World
    name: str

    @property
    def client(self) -> KubeClient:
        """Admin access."""
        return self.world.client

    # -- doing -----------------------------------------------------------------------------------

    async def create(self, body: Mapping[str, Any], *, dry_run: bool = False) -> Obj:
        """Apply a Job or Pod."""
        resource = _RESOURCES[body["kind"]]
        return await self.client.create(resource, self.name, body, dry_run=dry_run)

    async def create_all(self, bodies: Iterable[Mapping[str, Any]]) -> list[Obj]:
        """Apply them one after the other, so that their order is known."""
        return [await self.create(body) for body in bodies]

    async def delete(self, name: str, resource: ApiResource = JOBS) -> None:
        """Delete as kubectl does: its dependents go in the background."""
        await self.client.delete(resource, self.name, name, propagation="Background")

    def recording(self) -> Recording:
        """Record what happens to the pods of this namespace."""
        return Recording(self.client, self.name)

    async def finish(self, name: str) -> None:
        """Have the running pods of the Job ``name`` succeed now, though they were never to end."""
        notes = {f"{NOTE}never-ends": None, f"{NOTE}duration": "0s"}
        for pod in await self.pods(name):
            if pod["status"].get("phase") == "Running":
                at = (PODS, self.name, pod["metadata"]["name"])
                await self.client.patch(*at, {"metadata": {"annotations": notes}})

    # -- looking ---------------------------------------------------------------------------------

    async def fluxjob(self, name: str) -> Obj | None:
        """The FluxJob of the Job, Pod or group ``name``, if there is one."""
        for candidate in (f"{name}-job", f"{name}-pod", f"{name}-group"):
            try:
                return await self.client.get(FLUXJOBS, self.name, candidate)
            except NotFound:
                continue
        return None

    async def history(self, name: str) -> list[Obj]:
        """What has happened to the FluxJob of a workload, for the message of a failed test."""
        sql = (
            "SELECT h.at, h.event, h.detail FROM history h JOIN fluxjobs f USING (uid)"
            " WHERE f.namespace = :namespace AND f.workload_name = :name ORDER BY h.id"
        )
        return await self.world.rows(sql, namespace=self.name, name=name)

    async def pods(self, owner: str) -> list[Obj]:
        """The pods of a Job."""
        selector = f"batch.kubernetes.io/job-name={owner}"
        return (await self.client.list(PODS, self.name, label_selector=selector)).items

    async def events_on(self, uid: str) -> list[Obj]:
        """Events by us about an object, oldest first."""
        found = (
            await self.client.list(EVENTS, self.name, field_selector=f"involvedObject.uid={uid}")
        ).items
        ours = [one for one in found if one.get("reportingComponent") == "fluxqueue"]
        return sorted(ours, key=lambda one: int(one["metadata"]["resourceVersion"]))

    # -- waiting ---------------------------------------------------------------------------------

    async def until_state(self, name: str, *states: str, timeout_s: float = WAIT_S) -> Obj:
        """Wait until the FluxJob of ``name`` is in one of ``states``."""

        def is_in(found: Obj | None) -> bool:
            status = (found or {}).get("status") or {}
            is_told = "version" in status  # not the definition's default
            return is_told and status["state"] in states

        what = f"{name} {'/'.join(states)}"
        return await until(lambda: self.fluxjob(name), is_in, what, timeout_s=timeout_s) or {}

    async def until_job(self, name: str, condition: str = "Complete") -> Obj:
        """Wait until the Job ``name`` has a true ``condition``."""
        found: Obj = {}

        async def look() -> bool:
            found.update(await self.client.get(JOBS, self.name, name))
            return _has(found, condition)

        try:
            await eventually(look, f"Job {name} {condition}")
        except AssertionError as error:
            told = (await self.fluxjob(name) or {}).get("status")
            raise AssertionError(f"{error}; it is {found.get('status')}, {told}") from error
        return found

    async def until_all_complete(self, names: Iterable[str], *, timeout_s: float = WAIT_S) -> None:
        """Wait until all Jobs ``names`` are Complete."""
        wanted = set(names)

        async def look() -> bool:
            jobs = (await self.client.list(JOBS, self.name)).items
            done = {one["metadata"]["name"] for one in jobs if _has(one, "Complete")}
            failed = {one["metadata"]["name"] for one in jobs if _has(one, "Failed")}
            assert not failed & wanted, f"Jobs failed: {failed & wanted}"
            return wanted <= done

        await eventually(look, f"{len(wanted)} Jobs Complete", timeout_s=timeout_s)

    async def until_running(self, name: str, count: int) -> list[Obj]:
        """Wait until so many pods of the Job ``name`` run, and no other is there.

        (Its FluxJob is Running as soon as the first of them is.)
        """

        async def look() -> list[Obj] | None:
            pods = await self.pods(name)
            phases = [pod["status"].get("phase") for pod in pods]
            return pods if phases == ["Running"] * count else None

        return await eventually(look, f"{count} pods of {name} run") or []

    async def until_nothing_pending(self) -> None:
        """Wait until no process has anything to do, or to report, in this namespace."""
        sql = (
            "SELECT task FROM pending_actions JOIN fluxjobs f USING (uid)"
            " WHERE f.namespace = :namespace"
        )

        await until(
            lambda: self.world.rows(sql, namespace=self.name),
            lambda found: not found,
            f"nothing is owed in {self.name}",
        )

    async def until_gone(self, resource: ApiResource, name: str) -> None:
        """Wait until an object no longer exists."""

        async def look() -> bool:
            try:
                await self.client.get(resource, self.name, name)
            except NotFound:
                return True
            return False

        await eventually(look, f"the end of {resource.kind} {name}")

    async def until_true(self, is_true: Callable[[], Any], what: str) -> Any:
        """Wait for an awaitable condition."""
        return await eventually(is_true, what)


def _has(obj: Mapping[str, Any], condition: str) -> bool:
    found = (obj.get("status") or {}).get("conditions") or ()
    return any(one["type"] == condition and one["status"] == "True" for one in found)


async def make_space(world: World, labels: Mapping[str, str] | None = None) -> Space:
    """Create a namespace in which pods can be made."""
    body = {"metadata": {"generateName": "e2e-", "labels": dict(labels or {})}}
    made = await world.client.create(NAMESPACES, None, body)
    space = Space(world, made["metadata"]["name"])

    async def is_usable() -> bool:
        try:
            await world.client.get(SERVICE_ACCOUNTS, space.name, "default")
        except NotFound:
            return False
        return True

    await eventually(is_usable, f"the default service account of {space.name}")
    return space


async def remove_space(space: Space, *, timeout_s: float = WAIT_S) -> None:
    """Delete the namespace and wait until nothing that uses resources is left in it."""
    with suppress(NotFound):  # a test may have deleted it
        await space.client.delete(NAMESPACES, None, space.name)
    left: list[Obj] = []

    async def is_empty() -> bool:
        left.clear()
        for resource in (PODS, JOBS, FLUXJOBS):
            left.extend((await space.client.list(resource, space.name)).items)
        return not left

    try:
        await eventually(is_empty, f"nothing left in {space.name}", timeout_s=timeout_s)
    except AssertionError as error:
        shown = [(one["metadata"], one.get("spec"), one.get("status")) for one in left[:2]]
        raise AssertionError(f"{error}; {len(left)} are, such as {shown}") from error


async def create_with_patience(space: Space, body: Mapping[str, Any]) -> Obj:
    """Apply as a user does, and try again while the webhook is away."""
    made: Obj = {}

    async def attempt() -> bool:
        try:
            made.update(await space.create(body))
        except Conflict:
            made.update(await space.client.get(JOBS, space.name, body["metadata"]["name"]))
        except ApiUnavailable:
            return False
        return True

    await eventually(attempt, f"Job {body['metadata']['name']} created")
    return made


def elapsed_s(since: float) -> float:
    """Seconds since ``since`` of the monotonic clock."""
    return time.monotonic() - since
