"""What users see: status, events, kubectl, psql."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.kube.resources import DEPLOYMENTS, FLUXJOBS, STATEFULSETS
from fluxqueue.process.pacing import RUSH
from fluxqueue.scheduler.resource_set import read_resource_set
from tests.support.control_plane import ASSETS_ENV
from tests.support.e2e.custom_kinds import JOB_SET, MPI_JOB
from tests.support.e2e.group_members import member
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.operators import Operators
from tests.support.e2e.owned_pods import create, template
from tests.support.e2e.replica_sets import a_set
from tests.support.e2e.space import Space
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually, until


def _kubectl() -> str:
    assets = Path(os.environ.get(ASSETS_ENV, "/nonexistent")) / "kubectl"
    found = shutil.which("kubectl") or (str(assets) if assets.is_file() else None)
    if found is None:
        pytest.skip("kubectl is neither on PATH nor beside the control plane's programs")
    return found


async def kubectl(space: Space, *arguments: str) -> str:
    """What kubectl prints. Its failure is the test's."""
    process = await asyncio.create_subprocess_exec(
        _kubectl(),
        f"--kubeconfig={space.world.kubeconfig}",
        f"--namespace={space.name}",
        f"--cache-dir={space.world.stack.options.data_dir / 'kubectl-cache'}",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    return output.decode()


async def test_the_status_carries_r_and_nodes(space: Space) -> None:
    """From R alone an empty database could be rebuilt."""
    await space.create(job("told", pods=2, cpu="12", pool="main", run=FOR_EVER))
    status = (await space.until_state("told", "Running"))["status"]
    granted = status["R"]
    assert granted["execution"]["nodelist"] == [status["nodes"]]
    slots = read_resource_set(granted).slots
    assert [has["cpu"] for _, has in slots] == [12_000, 12_000]
    assert sorted(node for node, _ in slots) == sorted(expand(status["nodes"]))
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions == {
        "Queued": "False",
        "Reserved": "False",
        "Allocated": "True",
        "Released": "True",
        "Running": "True",
        "Finished": "False",
    }
    assert status["startTime"]
    assert await _numbers_on_pods(space) == {str(status["jobid"])}
    await space.delete("told")


async def _numbers_on_pods(space: Space) -> set[str | None]:
    """What `kubectl get pods -l fluxqueue/jobid=...` goes by."""
    return {pod["metadata"]["labels"].get("fluxqueue/jobid") for pod in await space.pods("told")}


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_many_that_start_at_once_and_last_are_all_told_to_run(space: Space) -> None:
    """It is put off for ten seconds at a time, since most of so many have ended by then."""
    names = [f"one-{number:02}" for number in range(2 * RUSH)]
    for name in names:
        await space.create(job(name, cpu="100m", pool="main", run=FOR_EVER))
    for name in names:
        await space.until_state(name, "Running")


async def test_a_start_is_one_event(space: Space) -> None:
    """How many slots, where, and after how long. Of its end its own controller tells."""
    made = await space.create(job("told", pods=2, cpu="8", pool="single"))
    await space.until_job("told")
    status = (await space.until_state("told", "Completed"))["status"]
    assert await _numbers_on_pods(space) == {str(status["jobid"])}
    uid = made["metadata"]["uid"]
    # The worker that starts it reports that beside the worker that reports its end.
    await space.until_true(lambda: space.events_on(uid), "an Event")
    await space.until_nothing_pending()
    *before, event = await space.events_on(uid)
    # On a busy machine it waits for long enough to show that.
    assert {one["reason"] for one in before} <= {"Queued", "Reserved"}
    assert (event["reason"], event["type"]) == ("Started", "Normal")
    assert re.fullmatch(r"2 slots on single after \d+\.\d s", event["message"])


async def test_a_job_that_waits_is_told_why(space: Space) -> None:
    """One Event for each thing that its author has to know, in order."""
    await space.create(job("blocker", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("blocker", "Running")
    made = await space.create(job("waits", cpu="16", pool="single"))
    await space.until_state("waits", "Pending", "Reserved")

    async def reasons() -> list[str]:
        return [one["reason"] for one in await space.events_on(made["metadata"]["uid"])]

    (first, *_) = await eventually(reasons, "a first Event")
    assert first in {"Queued", "Reserved"}
    await kubectl(space, "wait", "--for=condition=Queued", "fluxjob/waits-job", "--timeout=99s")
    told = (await space.until_state("waits", "Pending", "Reserved"))["status"]["conditions"]
    assert {one["reason"] for one in told} <= {"Queued", "Reserved"}
    assert next(one["type"] for one in told if one["status"] == "True") == "Queued"

    async def is_next() -> bool:
        return ((await space.fluxjob("waits")) or {})["status"].get("position") == 1

    await eventually(is_next, "its place is told")
    await space.delete("blocker")
    await space.until_job("waits")

    await until(reasons, lambda found: found[-1:] == ["Started"], "its start is told")


async def test_psql_shows_the_queue(space: Space) -> None:
    """``select * from queue`` is the first thing to type."""
    await space.create(job("blocker", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("blocker", "Running")
    await space.create(job("waits", pods=2, cpu="8", pool="single", wishes={"priority": "-7"}))
    await space.until_state("waits", "Pending", "Reserved")
    sql = "SELECT * FROM queue WHERE namespace = :namespace"

    async def with_reason() -> list[dict[str, object]]:
        found = await space.world.rows(sql, namespace=space.name)
        return found if found and found[0]["reason"] else []

    (row,) = await eventually(with_reason, "a reason in the queue")
    assert (row["position"], row["name"], row["size"], row["priority"]) == (1, "waits", 2, -7)


async def test_kubectl_gets_fluxjobs_in_columns(space: Space) -> None:
    """STATE, SIZE, NODES ... as the definition says."""
    await space.create(job("seen", pods=2, cpu="8", pool="single", run=FOR_EVER))
    await space.until_running("seen", 2)
    await space.until_state("seen", "Running")
    header, line = (await kubectl(space, "get", "fluxjobs")).splitlines()
    assert header.split() == [
        "NAME", "JOBID", "STATE", "SIZE", "NODES", "PRIORITY", "QUEUE", "START", "REASON", "AGE",
    ]  # fmt: skip
    name, jobid, *rest = line.split()
    assert (name, jobid.isdigit()) == ("seen-job", True)
    assert rest[:5] == ["Running", "2", "single", "0", "default"]
    header, line = (await kubectl(space, "get", "flux", "-o", "wide")).splitlines()[:2]
    assert header.split()[-4:] == ["POSITION", "EXPECTED", "EXPECTED-BY", "USER"]
    assert "seen-job" in line
    phases = await kubectl(
        space, "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName} {.items[*].status.phase}"
    )
    assert phases.split() == ["single", "single", "Running", "Running"]


async def test_all_kinds_read_alike_and_tell_their_story(space: Space) -> None:
    """The same columns for each, and ``kubectl describe`` of what its user has made tells of it."""
    async with Operators(space):
        for number in range(2):
            await space.create(member(f"g-{number}", "group", 2, run=FOR_EVER))
        await space.create(bare_pod("pod", run=FOR_EVER))
        for resource in (DEPLOYMENTS, STATEFULSETS):
            name = resource.kind.lower()[:6]
            await space.client.create(resource, space.name, a_set(resource, name, replicas=1))
        endless = template(run=FOR_EVER)
        await create(space, JOB_SET, "train", job_set_spec(a=(1, endless)))
        parts = {one: {"replicas": 1, "template": endless} for one in ("Launcher", "Worker")}
        await create(space, MPI_JOB, "amg", {"mpiReplicaSpecs": parts})
        expected = {
            "amg-mpijob": "2",
            "deploy-deployment": "1",
            "group-group": "2",
            "pod-pod": "1",
            "statef-statefulset": "1",
            "train-jobset": "1",
        }

        async def all_run() -> bool:
            found = (await space.client.list(FLUXJOBS, space.name)).items
            states = [(one.get("status") or {}).get("state") for one in found]
            return states == ["Running"] * len(expected)

        await eventually(all_run, "all run")
        said = (await kubectl(space, "get", "fluxjobs", "--no-headers")).splitlines()
        lines = {line.split()[0]: line.split()[1:] for line in said}
        assert {name: line[2] for name, line in lines.items()} == expected
        for name, (_, _, _, nodes, priority, queue, start, *_) in lines.items():
            assert (priority, queue) == ("0", "default"), name
            assert expand(nodes), name
            assert start.endswith("Z"), name
        mine = (
            *("pod/pod", "deployment/deploy", "statefulset/statef", "jobset/train", "mpijob/amg"),
            "fluxjob/group-group",
        )

        def do_all_tell(told: str) -> bool:
            return len(re.findall(r"Started .*fluxqueue +\d slots? on ", told)) == len(mine)

        await until(lambda: kubectl(space, "describe", *mine), do_all_tell, "each has started")


async def test_kubectl_describe_tells_the_story(space: Space) -> None:
    """The Event stands below the author's own object."""
    await space.create(job("seen", run={"duration": "500ms"}))
    await space.until_state("seen", "Completed")

    async def described() -> bool:
        text = await kubectl(space, "describe", "job", "seen")
        return "Started" in text[text.index("Events:") :]

    await eventually(described, "the Event is described")


async def test_kubectl_applies_waits_and_deletes(space: Space, tmp_path: Path) -> None:
    """The way of a user with nothing but kubectl."""
    manifest = tmp_path / "job.yaml"
    manifest.write_text(
        """
apiVersion: batch/v1
kind: Job
metadata: {name: by-hand}
spec:
  parallelism: 2
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers:
      - {name: main, image: busybox, resources: {requests: {cpu: "2"}}}
""",
        encoding="utf-8",
    )
    assert "job.batch/by-hand created" in await kubectl(space, "apply", "-f", str(manifest))
    await kubectl(space, "wait", "--for=condition=Complete", "job/by-hand", "--timeout=99s")
    await kubectl(space, "wait", "--for=condition=Finished", "fluxjob/by-hand-job", "--timeout=99s")
    await kubectl(space, "delete", "job", "by-hand")
    assert "No resources found" in await kubectl(space, "get", "pods")
