"""GitOps tools and Helm: a manifest that is applied again and again, and one that was exported.

Flux CD and Argo CD apply on the server with force. kubectl and Helm send strategic merge patches.
Argo CD and Flux CD first compare by a dry run.
"""

from __future__ import annotations

import copy

from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import FLUXJOBS, JOBS
from tests.support.e2e.gitops import TOOL, close, tool_account
from tests.support.e2e.objects import FOR_EVER, Obj, job
from tests.support.e2e.space import WAITING, Space


async def _sync(space: Space, tool: KubeClient, manifest: Obj) -> Obj:
    """Apply in each of the ways, as tools do. Return what is stored."""
    at = (JOBS, space.name, manifest["metadata"]["name"])
    of: Obj = {"kind": PatchKind.APPLY, "field_manager": TOOL, "force": True}
    applied = await tool.patch(*at, manifest, **of)
    compared = await tool.patch(*at, manifest, dry_run=True, **of)
    assert compared["spec"] == applied["spec"], "no drift is seen"
    desired = {"spec": {"suspend": manifest["spec"]["suspend"]}}
    return await tool.patch(*at, desired, kind=PatchKind.STRATEGIC)


async def test_a_sync_neither_fails_nor_flips(space: Space) -> None:
    """Before the first start, while it runs, and when it waits again."""
    tool = await tool_account(space)
    await space.create(job("blocker", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("blocker", "Running")
    manifest = job("synced", cpu="16", pool="single", run=FOR_EVER, suspend=False)
    for _ in range(3):
        stored = await _sync(space, tool, manifest)
        assert stored["spec"]["suspend"] is True
        assert stored["metadata"]["generation"] == 1, "it was resumed in between"
    await space.until_state("synced", *WAITING)
    await space.delete("blocker")
    await space.until_state("synced", "Running")
    for _ in range(2):
        assert (await _sync(space, tool, manifest))["spec"]["suspend"] is False
    await close(space, "single")
    try:
        again = {"spec": {"requeue": "again"}}
        await space.client.patch(FLUXJOBS, space.name, "synced-job", again, kind=PatchKind.MERGE)
        await space.until_state("synced", *WAITING)
        for _ in range(2):
            assert (await _sync(space, tool, manifest))["spec"]["suspend"] is True
    finally:
        await close(space, "single", is_closed=None)
    await space.until_state("synced", "Running")


async def test_an_exported_job_runs_on_another_node(space: Space) -> None:
    """As after a restored backup: its former node is closed."""
    await space.create(job("again", cpu="2"))
    node = (await space.until_state("again", "Completed"))["status"]["nodes"]
    exported = _exported(await space.client.get(JOBS, space.name, "again"))
    assert exported["spec"]["template"]["spec"].get("nodeSelector"), "it was pinned"
    await space.delete("again")
    await space.until_gone(JOBS, "again")
    await close(space, node)
    try:
        await space.create(exported)
        found = await space.until_state("again", "Completed")
        assert found["status"]["nodes"] != node
    finally:
        await close(space, node, is_closed=None)


def _exported(stored: Obj) -> Obj:
    """What is left of a Job that tools for backups write down."""
    found = copy.deepcopy({**stored, "apiVersion": "batch/v1", "kind": "Job"})
    del found["spec"]["selector"], found["status"]
    for meta in (found["metadata"], found["spec"]["template"]["metadata"]):
        told = meta.get("labels") or {}
        kept = [key for key in told if "controller-uid" not in key and "job-name" not in key]
        meta["labels"] = {key: told[key] for key in kept}
    for key in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        found["metadata"].pop(key, None)
    return found
