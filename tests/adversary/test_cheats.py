"""What a tenant may try in order to run more, sooner, or under another name than they may.

After faults of comparable systems: bounds that were checked at creation and passed by an update,
and files that a service read because a user's text named them.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import InvalidInput, NotFound
from fluxqueue.kube.resources import FLUXJOBS, FLUXQUEUES, JOBS, PODS
from fluxqueue.workload.annotations import read_wishes
from tests.adversary.attacks import POOL
from tests.adversary.tenants import Tenant
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.waiting import eventually, until
from tests.support.workloads import batch_job

QUEUE = "bounded"
PER_USER_M = 4000
WATCHED_S = 2.0

# --- bounds at creation, and at updates ----------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def bounded(mallory: Tenant) -> AsyncIterator[Tenant]:
    """A queue with limits of a job and of a user. Made by the administrator."""
    client = mallory.space.client
    spec = {"limits": {"perJob": {"cpu": "2"}, "perUser": {"cpu": f"{PER_USER_M}m", "jobs": 3}}}
    head = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    await client.create(FLUXQUEUES, None, {**head, "metadata": {"name": QUEUE}, "spec": spec})

    async def is_known() -> bool:
        rows = await mallory.space.world.rows(
            "SELECT 1 FROM fluxqueues WHERE name = :name", name=QUEUE
        )
        return bool(rows)

    await eventually(is_known, "the queue is known")
    yield mallory
    await client.request("DELETE", JOBS.path(mallory.space.name), body={"gracePeriodSeconds": 0})

    await until(
        lambda: client.list(FLUXJOBS, mallory.space.name),
        lambda found: not found.items,
        "no FluxJob is left in the queue",
    )
    await client.delete(FLUXQUEUES, None, QUEUE)


def _small(name: str, **more: Any) -> dict[str, Any]:
    body = job(name, cpu="1", pool=POOL, run=FOR_EVER, wishes={"hold": "true"}, **more)
    body["metadata"]["labels"] = {"fluxqueue/queue": QUEUE}
    return body


async def _in_use_m(tenant: Tenant) -> int:
    """Millicores of the pods of the tenant that run on nodes."""
    pods = (await tenant.space.client.list(PODS, tenant.space.name)).items
    return sum(
        int(1000 * float(pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]))
        for pod in pods
        if pod["spec"].get("nodeName") and pod["status"].get("phase") in ("Pending", "Running")
    )


async def _stays_within(tenant: Tenant) -> None:
    until = time.monotonic() + WATCHED_S
    while time.monotonic() < until:
        assert await _in_use_m(tenant) <= PER_USER_M
        await tenant.space.until_nothing_pending()


RESOURCES = ("spec", "template", "spec", "containers")
ENLARGED = [
    {"op": "replace", "path": "/spec/template/spec/containers/0/resources/requests/cpu", "value": 7}
]
UPDATES: dict[str, Any] = {
    "more pods": {"spec": {"parallelism": 50, "completions": None}},
    "larger pods": ENLARGED,
    "another queue": {"metadata": {"labels": {"fluxqueue/queue": "default"}}},
    "another user": {"metadata": {"annotations": {"fluxqueue/user": "vera"}}},
    "no queue": {"metadata": {"labels": {"fluxqueue/queue": None}}},
    "not managed": {"metadata": {"labels": {"fluxqueue/managed": "false"}}},
    "a priority": {"metadata": {"annotations": {"fluxqueue/priority": "1000000"}}},
}


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("update", UPDATES)
async def test_bounds_hold_after_an_update(bounded: Tenant, update: str) -> None:
    """A Job within the limits is created held, changed, and released: the limits still count."""
    body = _small("grows", parallelism=1)
    del body["spec"]["completions"]
    assert (await bounded.create(JOBS, body)).is_taken
    await bounded.space.until_state("grows", "Held")
    answer = await bounded.patch(JOBS, "grows", UPDATES[update])
    assert answer.is_taken or answer.code in (403, 422), answer
    names = [f"more-{n}" for n in range(4)]
    for name in names:
        assert (await bounded.create(JOBS, _small(name))).is_taken
    free = {"metadata": {"annotations": {"fluxqueue/hold": None}}}
    for name in ("grows", *names):
        assert (await bounded.patch(JOBS, name, free)).is_taken
    await _until_settled(bounded)
    await _stays_within(bounded)
    assert not bounded.faults, bounded.faults


async def _until_settled(tenant: Tenant) -> None:
    """Until some of them run and the others wait for good."""
    await tenant.space.until_nothing_pending()

    await until(lambda: _in_use_m(tenant), lambda found: found > 0, "some of them run")


async def test_a_running_job_is_not_enlarged(bounded: Tenant) -> None:
    """Suspended, enlarged and resumed in one go, over and over."""
    body = _small("swells")
    del body["metadata"]["annotations"]["fluxqueue/hold"]
    assert (await bounded.create(JOBS, body)).is_taken
    await bounded.space.until_running("swells", 1)
    for _ in range(3):
        await bounded.patch(JOBS, "swells", {"spec": {"suspend": True}})
        await bounded.patch(JOBS, "swells", ENLARGED)
        await bounded.patch(JOBS, "swells", {"spec": {"suspend": False}})
    await _stays_within(bounded)
    assert not bounded.faults, bounded.faults


# --- other tenants' objects ----------------------------------------------------------------------


async def test_nothing_of_others_is_reached(victim: Tenant, mallory: Tenant) -> None:
    """Neither read, asked about, steered, claimed nor depended on."""
    assert (await victim.create(JOBS, job("theirs", cpu="100m", run=FOR_EVER))).is_taken
    fluxjob = await victim.space.until_state("theirs", "Running")
    at = FLUXJOBS.path(victim.space.name, "theirs-job")
    for method, body in (("GET", None), ("PATCH", {"spec": {"hold": True}}), ("DELETE", None)):
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        assert (await mallory.send(method, at, body, kind)).code == 403
    jobid = fluxjob["status"]["jobid"]
    for name in ("theirs", str(jobid), f"{victim.space.name}/theirs"):
        waits = job(f"after-{len(name)}", cpu="100m", wishes={"depends-on": f"afterok:{name}"})
        answer = await mallory.create(JOBS, waits)
        if answer.is_taken:
            await mallory.space.until_state(waits["metadata"]["name"], "Pending", "Held")
            told = await mallory.space.fluxjob(waits["metadata"]["name"])
            assert told is not None
            assert "Running" not in told["status"].get("reason", "")
    uid = fluxjob["spec"]["workload"]["uid"]
    leech = {
        "metadata": {
            "name": "leech",
            "labels": {"batch.kubernetes.io/job-name": "theirs"},
            "ownerReferences": [
                {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "name": "theirs",
                    "uid": uid,
                    "controller": True,
                }
            ],
        },
        "spec": job("leech", cpu="100m", pool=POOL)["spec"]["template"]["spec"],
    }
    await mallory.create(PODS, leech)
    await mallory.space.until_nothing_pending()
    rows = await victim.space.world.rows(
        "SELECT namespace FROM pods WHERE workload_uid = :uid", uid=uid
    )
    assert {row["namespace"] for row in rows} == {victim.space.name}
    with suppress(NotFound):  # the garbage collector knows that its owner is not there
        await mallory.space.client.delete(PODS, mallory.space.name, "leech", grace_s=0)
    assert not mallory.faults, mallory.faults


# --- files ---------------------------------------------------------------------------------------

FILES = (
    *("/etc/passwd", "@/etc/passwd", "file:///etc/passwd", "!include /etc/passwd"),
    *("~/.kube/config", "$(cat /etc/passwd)", "a: !file /etc/passwd", "%include /etc/passwd"),
    *("!!python/object/apply:builtins.open [/etc/passwd]", "{{ lookup('file', '/etc/passwd') }}"),
)
KEYS = ("jobspec", "duration", "depends-on", "begin-time", "queue", "within", "match-policy")


@pytest.mark.parametrize("text", FILES)
def test_no_annotation_names_a_file(text: str) -> None:
    """Refused in words, and nothing of a file in them."""
    for key in KEYS:
        with pytest.raises(InvalidInput) as caught:
            read_wishes(batch_job(meta={"annotations": {f"fluxqueue/{key}": text}}))
        assert "root:" not in str(caught.value)
