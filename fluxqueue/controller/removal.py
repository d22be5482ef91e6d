"""Uninstall: leave nothing behind that waits for fluxqueue.

``fluxqueue uninstall`` runs it, by hand or as the chart's hook. The hook runs before the parts are
removed, so controller and workers may still run.

The order matters. The webhook configuration goes first, so that no new pod is gated. Then our gates
and suspensions go. Each change is conditional on what was read, and a round finds what is left by
listing it. So a crash or a repetition does no harm.

It needs no database. Everything that waits bears our gate, and the FluxJob says whether a job is
held.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, Invalid, NotFound
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE, forget_view
from fluxqueue.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    FLUXJOBS,
    JOBS,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
    NODES,
    PODS,
    SECRETS,
    ApiResource,
)
from fluxqueue.nodepools.plan.node_protection import releasing_notes
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import Patch
from fluxqueue.workload.kinds.admitted import assemble_owner
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKinds
from fluxqueue.workload.pods import gate_index, template_spec
from fluxqueue.workload.release_patches import leave_job_patch, leave_pod_patch
from fluxqueue.workload.suspension import leave_owner_patch

logger = logging.getLogger(__name__)


ROUND_S = 2.0
QUIET_ROUNDS = 2
"""Rounds without changes before the end, because API servers call a webhook a moment longer."""

PART_OF = "app.kubernetes.io/part-of=fluxqueue"
_POLICIES = (
    *(ADMISSION_POLICY_BINDINGS, ADMISSION_POLICIES),
    *(MUTATING_POLICY_BINDINGS, MUTATING_POLICIES),
)
FORBIDDEN = 403
PATIENCE_S = 60.0
"""How long (seconds) failed changes are retried."""


@dataclass(frozen=True, slots=True)
class UninstallOptions:
    """What to remove, and how.

    Parameters
    ----------
    configuration : name of the MutatingWebhookConfiguration.
    secret : namespace and name of the Secret to delete if its certificates are ours.
    leave_suspended : whether waiting Jobs stay suspended.
    remove_policies : whether the chart's admission policies are removed first. With them, only our
        accounts may remove gates.
    keep_view : whether the ConfigMap with the address of the view server stays, although we made
        it.
    wait_s : how long (seconds) to wait for Jobs that run already, because their later pods are
        gated.
    owner_kinds : other kinds that may wait suspended.
    """

    configuration: str
    secret: tuple[str, str] | None = None
    leave_suspended: bool = False
    remove_policies: bool = False
    keep_view: bool = False
    wait_s: float = 0.0
    owner_kinds: OwnerKinds = field(default_factory=OwnerKinds)


@dataclass(slots=True)
class UninstallReport:
    """What was done, and what remains.

    ``jobs`` also names other suspended objects that waited, with their kind. ``nodes`` are those
    that are not protected from autoscalers any more. ``failed`` holds
    errors by object. ``running`` holds Jobs with our gate that run. ``held`` holds Jobs that were
    released but stay suspended, because their author or an operator held them.
    """

    webhook_removed: bool = False
    policies_removed: int = 0
    secret_removed: bool = False
    view_forgotten: bool = False
    jobs: set[str] = field(default_factory=set)
    pods: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Return whether nothing waits for fluxqueue any more."""
        return not self.failed


async def uninstall(client: KubeClient, clock: Clock, options: UninstallOptions) -> UninstallReport:
    """Remove the webhook configuration, release what waits, and return a report.

    Raises
    ------
    ApiUnavailable, ApiError
        The webhook configuration cannot be removed, or objects cannot be listed. Nothing further is
        done then. Errors of single objects are in the report.
    """
    report = UninstallReport()
    # First: while the webhook exists, new pods are gated.
    await _remove_webhook(client, options, report)
    # Before the rounds: the policies would refuse to remove the gates.
    if options.remove_policies:
        report.policies_removed = await remove_policies(client)
    started_s, quiet = clock.monotonic_s(), 0
    while True:
        has_changed = await _round(client, options, report)
        # Pods that were admitted just before the webhook went may appear a moment later.
        quiet = 0 if has_changed or report.failed else quiet + 1
        lasted_s = clock.monotonic_s() - started_s
        if report.failed and lasted_s > PATIENCE_S:
            break
        if quiet >= QUIET_ROUNDS and (not report.running or lasted_s >= options.wait_s):
            break
        await clock.sleep(ROUND_S)
    await _release_nodes(client, report)
    await _remove_secret(client, options, report)
    if not options.keep_view:
        await _forget_view(client, report)
    return report


async def _remove_webhook(
    client: KubeClient, options: UninstallOptions, report: UninstallReport
) -> None:
    try:
        await client.delete(MUTATING_WEBHOOKS, None, options.configuration)
    except NotFound:
        return
    report.webhook_removed = True


async def remove_policies(client: KubeClient) -> int:
    """Remove our admission policies and bindings, and return how many there were.

    Bindings go before policies: to some, a binding without its policy is an error. A cluster may
    serve only some of the kinds, or none.
    """
    removed = 0
    served = await find_served(client, {(one.group, one.kind) for one in _POLICIES})
    for resource in _POLICIES:
        if resource not in served:
            continue
        policies = (await client.list(resource, label_selector=PART_OF)).items
        for found in policies:
            try:
                await client.delete(resource, None, found["metadata"]["name"])
            except NotFound:
                continue
            removed += 1
    return removed


async def _remove_secret(
    client: KubeClient, options: UninstallOptions, report: UninstallReport
) -> None:
    """Delete our certificates. Without a webhook configuration the controller makes no new ones."""
    if options.secret is None:
        return
    namespace, name = options.secret
    try:
        secret = await client.get(SECRETS, namespace, name)
        marks = secret["metadata"].get("labels") or {}
        if marks.get(labels.CERTIFICATES) == labels.SELF_MADE:
            await client.delete(SECRETS, namespace, name, uid=secret["metadata"]["uid"])
            report.secret_removed = True
    except (NotFound, Conflict):
        return
    except (ApiError, ApiUnavailable) as error:
        report.failed[f"Secret {namespace}/{name}"] = str(error)


async def _release_nodes(client: KubeClient, report: UninstallReport) -> None:
    """Remove our annotations against scale-down. Without us, such nodes would stay for ever."""

    def own(node: Object) -> Object | None:
        return node if releasing_notes(node["metadata"].get("annotations") or {}) else None

    try:
        found, _ = await client.collect(NODES, keep=own, metadata_only=True)
    except ApiError as error:
        # The chart gives the right only if nodes are protected.
        if error.code != FORBIDDEN:
            report.failed["nodes"] = str(error)
        return
    except ApiUnavailable as error:
        report.failed["nodes"] = str(error)
        return
    for node in filter(None, found):
        meta = node["metadata"]
        changes = releasing_notes(meta["annotations"])
        # With the version, so that an annotation that changes meanwhile stays.
        patch = {"metadata": {"resourceVersion": meta["resourceVersion"], "annotations": changes}}
        error_text = await _error_of(client.patch(NODES, None, meta["name"], patch))
        if error_text is not None:
            report.failed[f"Node {meta['name']}"] = error_text
        else:
            report.nodes.add(meta["name"])


async def _forget_view(client: KubeClient, report: UninstallReport) -> None:
    try:
        report.view_forgotten = await forget_view(client)
    except (ApiError, ApiUnavailable) as error:
        report.failed[f"ConfigMap {VIEW_NAMESPACE}/{VIEW_NAME}"] = str(error)


async def _round(client: KubeClient, options: UninstallOptions, report: UninstallReport) -> bool:
    """Release all that waits now. Return whether anything had to be done."""
    report.failed.clear()
    jobs = [job for job in (await client.list(JOBS)).items if _is_gated_job(job)]
    waiting = [job for job in jobs if job["spec"].get("suspend")]
    report.running = [_name(job) for job in jobs if not job["spec"].get("suspend")]
    held = await _held(client) if waiting else frozenset()

    def let_go(job: Object) -> Patch:
        is_held = job["metadata"]["uid"] in held
        return leave_job_patch(job, is_unsuspended=not (options.leave_suspended or is_held))

    done = await _patch_all(client, JOBS, waiting, let_go, report)
    report.jobs |= done
    report.held |= done & {_name(job) for job in waiting if job["metadata"]["uid"] in held}
    # Pods last: a released owner may still make pods with our gate.
    owners = await _let_owners_go(client, options, report)
    pending = await client.list(PODS, field_selector="status.phase=Pending")
    gated = [pod for pod in pending.items if _is_gated_pod(pod)]
    freed = await _patch_all(client, PODS, gated, leave_pod_patch, report)
    report.pods |= freed
    return bool(done or owners or freed)


async def _let_owners_go(
    client: KubeClient, options: UninstallOptions, report: UninstallReport
) -> set[str]:
    """Release suspended objects that make pods. Return their names."""
    entries = {(one.group, one.kind): one for one in options.owner_kinds if one.suspend}
    done: set[str] = set()
    for resource in await find_served(client, entries.keys()):
        entry = entries[resource.group, resource.kind]
        listed = (await client.list(resource)).items
        found = [assemble_owner(one, entry, resource.api_version) for one in listed]
        waiting = [one for one in found if is_managed(one) and SUSPENDED_OWNER.is_suspended(one)]
        held = await _held(client) if waiting else frozenset()

        def leave(owner: Object, held: Set[str] = held, suspend: str = entry.suspend) -> Patch:
            is_kept = options.leave_suspended or owner["metadata"]["uid"] in held
            return leave_owner_patch(owner, suspend, is_unsuspended=not is_kept)

        patched = await _patch_all(client, resource, waiting, leave, report)
        done |= {f"{resource.kind} {name}" for name in patched}
        kept = {_name(one) for one in waiting if one["metadata"]["uid"] in held}
        report.held |= {f"{resource.kind} {name}" for name in patched & kept}
    report.jobs |= done
    return done


async def _held(client: KubeClient) -> frozenset[str]:
    """Return the UIDs of held workloads. They are released, but stay suspended.

    This includes a Job that its author suspended after it had run. Nothing else distinguishes it
    from a Job that fluxqueue suspended.
    """

    def owners(fluxjob: Object) -> list[str]:
        is_held = (fluxjob.get("status") or {}).get("state") == FluxJobState.HELD
        references = fluxjob["metadata"].get("ownerReferences") or () if is_held else ()
        return [one["uid"] for one in references]

    try:
        found, _ = await client.collect(FLUXJOBS, keep=owners)
    except NotFound:
        return frozenset()  # the definition is already gone
    return frozenset(itertools.chain.from_iterable(found))


def _is_gated_job(job: Object) -> bool:
    """Return whether a Job that has not ended makes, or would make, pods with our gate."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    is_over = any(
        one["type"] in {"Complete", "Failed"} and one["status"] == "True" for one in conditions
    )
    is_going = job["metadata"].get("deletionTimestamp")
    return not is_over and not is_going and gate_index(template_spec(job["spec"])) is not None


def _is_gated_pod(pod: Object) -> bool:
    return not pod["metadata"].get("deletionTimestamp") and gate_index(pod["spec"]) is not None


async def _patch_all(
    client: KubeClient,
    resource: ApiResource,
    objects: Sequence[Object],
    patch_of: Callable[[Object], Patch],
    report: UninstallReport,
) -> set[str]:
    """Patch all objects at once, and return the names of the patched ones.

    The client bounds how many calls are open. An object that has changed since it was read is read
    again in the next round.
    """

    async def one(obj: Object) -> str | None:
        meta = obj["metadata"]
        call = client.patch(
            resource, meta["namespace"], meta["name"], patch_of(obj), kind=PatchKind.JSON
        )
        error = await _error_of(call)
        if error is not None:
            report.failed[f"{resource.kind} {_name(obj)}"] = error
            return None
        return _name(obj)

    outcomes = await asyncio.gather(*(one(obj) for obj in objects))
    return {name for name in outcomes if name is not None}


async def _error_of(call: Awaitable[Any]) -> str | None:
    try:
        await call
    except NotFound:
        return None  # gone, so it no longer waits
    except (Conflict, Invalid, ApiUnavailable, ApiError) as error:
        return str(error)
    return None


def _name(obj: Object) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
