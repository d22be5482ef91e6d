"""The ``reconcile`` task: reconcile workloads and their pods with the rows.

Each pod that now holds a slot is released to the slot's node, by one patch and without a read
before it. A pod that can start nowhere is deleted. Releases are recorded at once, so nothing that
is in flight is sent again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fluxqueue.db.store.reconciling import Evict, Reconciled, Ungate, finish, reconcile
from fluxqueue.db.store.starts import MissingPods, keep_words
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import Invalid, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import PODS
from fluxqueue.process import metrics
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.creation_failures import start_rules
from fluxqueue.worker.effects import Failure, all_at_once, conclude, one_by_one
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.table import find_kind
from fluxqueue.workload.references import read_reference
from fluxqueue.workload.release_patches import ungate_by_name_patch, ungate_patch

logger = logging.getLogger(__name__)


async def reconcile_workloads(context: WorkerContext, uids: Sequence[str]) -> None:
    """Reconcile workloads with their rows, and release or delete their pods accordingly.

    Raises
    ------
    EffectsFailed
        Something has failed, and stays pending.
    """

    rules = start_rules(context.settings)

    async def look(part: Sequence[str]) -> Reconciled:
        async with context.database.begin() as tx:
            return await reconcile(tx, part, if_observed=True, rules=rules)

    parts, broken = await one_by_one(uids, look)
    # The effects run after the commit: a rollback must not leave a pod released.
    reconciled = Reconciled()
    for part in parts:
        reconciled.add(part)
    for reason in reconciled.start_failures:
        metrics.START_FAILURES.labels(reason).inc()
    ungated, not_ungated = await all_at_once(reconciled.ungates, lambda one: _ungate(context, one))
    _, not_evicted = await all_at_once(reconciled.evictions, lambda one: _evict(context, one))
    asked, not_asked = await all_at_once(reconciled.missing, lambda one: _explain(context, one))
    for error in not_asked.values():
        # The words are a help for users. Without them the workload is followed as well.
        logger.warning("not asked why pods are missing", extra={"error": error.error})
    failed = {
        one.workload_uid: replace(error, error=f"pod {one.namespace}/{one.name}: {error.error}")
        for pods, errors in ((reconciled.ungates, not_ungated), (reconciled.evictions, not_evicted))
        for one, error in _of(pods, errors)
    }
    failed |= broken
    let_go = [uid for uid in ungated if uid is not None]
    # Before conclude, which may raise: otherwise released pods would be patched once more.
    await finish(context.database, reconciled, let_go=let_go, failed=failed)
    # Without words, there is nothing to keep of a pod that was only asked about.
    await keep_words(
        context.database, {one.workload_uid: words for one, words in asked if words or one.is_told}
    )
    await conclude(context, TaskName.RECONCILE, len(uids) - len(failed), failed)


async def _explain(context: WorkerContext, one: MissingPods) -> tuple[MissingPods, str]:
    """Read why the pods of one workload are not created. Return it with the words."""
    return one, await context.failures.words(one.namespace, one.workload_uid, one.since_s)


def _of(
    pods: Sequence[Ungate] | Sequence[Evict], errors: Mapping[int, Failure]
) -> list[tuple[Ungate | Evict, Failure]]:
    return [(pods[number], error) for number, error in errors.items()]


async def _ungate(context: WorkerContext, ungate: Ungate) -> str | None:
    """Release one pod. Return its UID, or None if the pod no longer exists."""
    # An author may apply any other pod again, and an apply needs the owners of its fields.
    drops_managed_fields = _is_of_job(ungate) and context.settings.drops_managed_fields
    try:
        if ungate.has_affinity and (ungate.to.hostname is None or ungate.others):
            await _narrow(context, ungate)
        else:
            patch = ungate_patch(
                ungate.pod_uid,
                to=ungate.to,
                has_affinity=ungate.has_affinity,
                jobid=ungate.jobid,
                nodes=ungate.nodes,
                others=ungate.others,
                drops_managed_fields=drops_managed_fields,
            )
            await context.client.patch(
                PODS,
                ungate.namespace,
                ungate.name,
                patch,
                kind=PatchKind.STRATEGIC,
                metadata_only=True,
            )
    except NotFound:
        return None  # the controller observes the removal, and that frees the slot
    except Invalid:
        # Race: another pod may have this name by now, and the UID in the patch then refuses it.
        # The pod's own host constraints cannot be the cause, because they were matched.
        if await _is_there(context, ungate):
            raise
        return None
    if ungate.waited_s is not None:
        metrics.UNGATED_S.observe(ungate.waited_s)
    return ungate.pod_uid


def _is_of_job(ungate: Ungate) -> bool:
    """Return whether the workload is a BatchJob, not an object that is suspended as a whole."""
    owner = read_reference(ungate.owner)
    is_in_owner = owner is not None and bool(owner.suspend)
    # Never an error: pods of a kind that only a later version knows are released as well.
    return not is_in_owner and find_kind(BATCH_JOB.group, ungate.workload_kind) is BATCH_JOB


async def _is_there(context: WorkerContext, ungate: Ungate) -> bool:
    try:
        pod = await context.client.get(PODS, ungate.namespace, ungate.name)
    except NotFound:
        return False
    return bool(pod["metadata"]["uid"] == ungate.pod_uid)


async def _narrow(context: WorkerContext, ungate: Ungate) -> None:
    """Release a pod that has its own affinity to a node without a hostname label, or to several."""
    # A read comes first here: the patch changes the affinity that the pod has.
    pod = await context.client.get(PODS, ungate.namespace, ungate.name)
    if pod["metadata"]["uid"] != ungate.pod_uid:
        return
    patch = ungate_by_name_patch(
        pod, to=ungate.to, jobid=ungate.jobid, nodes=ungate.nodes, others=ungate.others
    )
    if patch is not None:
        await context.client.patch(PODS, ungate.namespace, ungate.name, patch, kind=PatchKind.JSON)


async def _evict(context: WorkerContext, one: Evict) -> None:
    """Delete a pod that can start nowhere: its node is gone, and it is bound to no node.

    The deletion requires the version that was read as unbound.
    """
    try:
        pod = await context.client.get(PODS, one.namespace, one.name)
        meta = pod["metadata"]
        if meta["uid"] == one.pod_uid and not pod["spec"].get("nodeName"):
            # Race: the scheduler may bind the pod now. Its version then differs, and it survives.
            await context.client.delete(
                PODS, one.namespace, one.name, uid=one.pod_uid, version=meta["resourceVersion"]
            )
    except NotFound:
        return
