"""Manifests that were written for Kueue run queued here, unchanged.

Kueue's own samples are read from a checkout of it, ``FLUXQUEUE_KUEUE_EXAMPLES`` (the folder with
``jobs`` and others), and never copied. The other manifests are ours.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from fluxqueue.errors import Conflict, Invalid
from fluxqueue.kube.resources import DEPLOYMENTS, FLUXJOBS, FLUXQUEUES, ApiResource
from fluxqueue.workload.owner_kinds import BUILT_IN
from tests.support.e2e.custom_kinds import JOB_SET, define
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually

K = "kueue.x-k8s.io/"
QUEUE = "user-queue"
EXAMPLES = Path(os.environ.get("FLUXQUEUE_KUEUE_EXAMPLES", "absent"))
FOLDERS = ("jobs", "pods-kueue", "serving-workloads")
NOT_OURS = {
    "ConfigMap": "a file of the sample",
    "CronJob": "its Jobs are queued: the test creates one from its template",
    "RayService": "no kind of the table of owners",
    "Namespace": "the tests have their own",
}
STARTED = ("Allocated", "Running", "Completed")


@pytest_asyncio.fixture(loop_scope="session")
async def queue(space: Space) -> AsyncIterator[str]:
    """A FluxQueue with the name of the LocalQueue in Kueue's samples."""
    body = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    names = (QUEUE, f"tas-{QUEUE}")
    for name in names:
        with suppress(Conflict):
            await space.client.create(FLUXQUEUES, None, {**body, "metadata": {"name": name}})
    yield QUEUE
    for name in names:  # its jobs go with the namespace
        await space.client.delete(FLUXQUEUES, None, name)


def _samples() -> list[Any]:
    paths = [path for folder in FOLDERS for path in sorted((EXAMPLES / folder).glob("*.yaml"))]
    return [
        pytest.param(document, id=f"{path.stem}-{document['kind']}")
        for path in paths
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if document and not document["apiVersion"].startswith("kueue.")
    ]


async def _started_in(space: Space, queue: str, name: str, states: Sequence[str] = STARTED) -> Obj:
    """Wait for the FluxJob of something, and for its start."""

    async def look() -> Obj | None:
        for one in (await space.client.list(FLUXJOBS, space.name)).items:
            status = one.get("status") or {}
            if one["metadata"]["name"].startswith(name) and status.get("state") in states:
                return one
        return None

    found = await eventually(look, f"{name} has started")
    assert found is not None
    assert found["status"]["queue"] == queue
    return found


def _resource(document: Obj) -> ApiResource | None:
    group, _, version = document["apiVersion"].rpartition("/")
    for one in BUILT_IN:
        if (one.group, one.kind) == (group, document["kind"]):
            return ApiResource(group, version, one.resource, one.kind, True)
    return None


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="FLUXQUEUE_KUEUE_EXAMPLES names no folder")
@pytest.mark.parametrize("document", _samples())
async def test_a_sample_of_kueue_runs_unchanged(space: Space, queue: str, document: Obj) -> None:
    """Jobs and pods start. What can be suspended is released, and the pods of the others ask."""
    kind = document["kind"]
    if kind in NOT_OURS and kind != "CronJob":
        pytest.skip(NOT_OURS[kind])
    if kind == "CronJob":
        document = {"apiVersion": "batch/v1", "kind": "Job", **document["spec"]["jobTemplate"]}
        document["metadata"]["name"] = "of-a-cron-job"
    document["metadata"].pop("namespace", None)
    meta = document["metadata"]
    name = meta.get("name") or meta["generateName"]
    if kind in {"Job", "CronJob"}:
        await space.create(document)
        await _started_in(space, queue, name)
        return
    if kind == "Pod":
        # A pod of a group waits for the other one, which has the same group in the same file.
        made = [document, document] if f"{K}pod-group-name" in meta["labels"] else [document]
        await space.create_all(made)
        group = meta["labels"].get(f"{K}pod-group-name")
        await _started_in(space, queue, group or name)
        return
    resource = _resource(document)
    assert resource is not None, f"what is a {kind}?"
    if resource.group != "apps":
        await define(space, resource)
    made_one = await space.client.create(resource, space.name, document)
    assert made_one["metadata"]["labels"]["fluxqueue/queue"].endswith(queue)
    assert made_one["metadata"]["labels"]["fluxqueue/managed"] == "true"
    if made_one["metadata"].get("annotations", {}).get("fluxqueue/suspended"):
        is_possible = "topology-block" not in str(document)  # the tests' nodes have racks alone
        states = STARTED if is_possible else ("Unsatisfiable",)
        await _started_in(space, queue, name, states)


async def test_a_job_with_all_that_kueue_knows(space: Space, queue: str) -> None:
    """Queue, time, and a level of the cluster by its node label."""
    body = job("told", pods=2, cpu="2", run=FOR_EVER)
    body["metadata"]["labels"] = {
        f"{K}queue-name": queue,
        f"{K}priority-class": "absent",
        f"{K}max-exec-time-seconds": "1800",
    }
    level = {f"{K}podset-required-topology": "topology.kubernetes.io/zone"}
    body["spec"]["template"]["metadata"]["annotations"] |= level
    made = await space.create(body)
    assert made["spec"]["activeDeadlineSeconds"] == 1800
    found = await _started_in(space, queue, "told-job")
    assert found["status"]["nodes"] in {"node-1", "node-2", "node-3", "node-4"}


async def test_an_error_is_in_the_words_of_the_author(space: Space) -> None:
    """The key that the manifest has, not the one that stands for it."""
    body = job("bad")
    body["metadata"]["labels"] = {f"{K}queue-name": "q", f"{K}max-exec-time-seconds": "soon"}
    with pytest.raises(Invalid, match=r"\[kueue.x-k8s.io/max-exec-time-seconds\]"):
        await space.create(body)


async def test_what_makes_pods_asks_by_its_queue(space: Space, queue: str) -> None:
    """A Deployment starts as a whole, and a JobSet waits suspended. Neither has a label of ours."""
    pod = bare_pod("x", cpu="1", run=FOR_EVER)
    template = {"metadata": {"labels": {"app": "web"}}, "spec": pod["spec"]}
    template["spec"].pop("restartPolicy", None)
    meta = {"name": "web", "labels": {f"{K}queue-name": queue}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}
    await space.client.create(DEPLOYMENTS, space.name, web)
    await _started_in(space, queue, "web-deployment")
    await define(space, JOB_SET)
    inner = {"metadata": {}, "spec": pod["spec"]}
    body = {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.kind,
        "metadata": {"name": "set", "labels": {f"{K}queue-name": queue}},
        "spec": job_set_spec(workers=(2, inner)),
    }
    made = await space.client.create(JOB_SET, space.name, body)
    assert made["spec"]["suspend"] is True
    await _started_in(space, queue, "set-jobset")
