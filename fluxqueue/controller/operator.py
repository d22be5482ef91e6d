"""What kopf runs: our own resources, which are few and slow compared with pods.

Part of the leading controller, in its event loop. Pods, nodes and BatchJobs come through our own
informers (``watches``). Handlers only pass events on. kopf's own peering is off, because a Lease
chooses the one active controller (``main``). A resync finds what kopf misses, such as a deletion
during a relist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any

import kopf

from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import FLUXJOBS, PLACEMENT_REVIEWS


def build_registry(
    config: ClusterConfig,
    *,
    on_fluxjob_seen: Callable[[Mapping[str, Any]], None],
    on_fluxjob_deleted: Callable[[Mapping[str, Any]], None],
    on_fluxjob_let_go: Callable[[Mapping[str, Any]], Awaitable[None]],
    on_review_seen: Callable[[Mapping[str, Any]], None],
    on_review_deleted: Callable[[Mapping[str, Any]], None],
) -> kopf.OperatorRegistry:
    """Build the handlers of one operator.

    There are only ``on.event`` handlers, because they cost no write. Handlers of creation and
    update store what they have seen in an annotation of each object, which is one PATCH per change.

    Parameters
    ----------
    on_fluxjob_seen, on_fluxjob_deleted : called with each FluxJob that exists, or is gone.
    on_fluxjob_let_go : called with a FluxJob without an owner, which is not garbage collected.
        Either no object represents its workload, or that object was deleted and its dependents were
        orphaned.
    on_review_seen, on_review_deleted : called with each PlacementReview that exists, or is gone.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**_kwargs: Any) -> kopf.ConnectionInfo:
        scheme, _, token = (config.authorization_header() or "").partition(" ")
        return kopf.ConnectionInfo(
            server=config.server,
            ca_data=config.ca_pem,
            ca_path=config.ca_file,
            insecure=config.is_insecure,
            scheme=scheme or None,
            token=token or None,
            certificate_path=config.client_cert_file,
            private_key_path=config.client_key_file,
            certificate_data=config.client_cert_pem,
            private_key_data=config.client_key_pem,
            proxy_url=config.proxy_url,
        )

    @kopf.on.event(FLUXJOBS.group, FLUXJOBS.version, FLUXJOBS.plural, registry=registry)
    async def fluxjob_event(event: Mapping[str, Any], body: Mapping[str, Any], **_: Any) -> None:
        meta = body["metadata"]
        if event.get("type") == "DELETED":
            on_fluxjob_deleted(body)
            return
        on_fluxjob_seen(body)
        if not meta.get("ownerReferences") and not meta.get("deletionTimestamp"):
            await on_fluxjob_let_go(body)

    group, version, plural = (
        PLACEMENT_REVIEWS.group,
        PLACEMENT_REVIEWS.version,
        PLACEMENT_REVIEWS.plural,
    )

    @kopf.on.event(group, version, plural, registry=registry)
    async def review_event(event: Mapping[str, Any], body: Mapping[str, Any], **_: Any) -> None:
        tell = on_review_deleted if event.get("type") == "DELETED" else on_review_seen
        tell(body)

    return registry


class _NothingKept(kopf.DiffBaseStorage):
    """Make, keep and compare no essence of any object, which saves half the cost of an event."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        return


class _NothingNoted(kopf.ProgressStorage):
    """Store no progress of handlers: no object is searched for it."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return

    def purge(self, **_: Any) -> None:
        return

    def touch(self, **_: Any) -> None:
        return

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class _Everybody(Collection[asyncio.Task[Any]]):
    """All tasks of the loop, present and future."""

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(asyncio.all_tasks())

    def __len__(self) -> int:
        return len(asyncio.all_tasks())


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NothingKept()
    settings.persistence.progress_storage = _NothingNoted()
    # Otherwise the process is killed ten minutes after kopf has ended, even by an error.
    settings.process.ultimate_exiting_timeout = None
    return settings


async def run_operator(
    registry: kopf.OperatorRegistry, *, take_signals: Callable[[], None] = lambda: None
) -> None:
    """Run kopf until cancelled, in a loop that has other tasks.

    ``kopf.operator`` treats every task that began after it as its own. It cancels them all when it
    ends, even by an error (a watch that is answered with 410 is one). With all tasks ignored, it
    cancels only its root tasks. Those end the tasks that they have begun.

    Parameters
    ----------
    take_signals : restores the handling of SIGTERM and SIGINT, which kopf takes over at its start.

    Raises
    ------
    Exception
        The error that ended kopf. The caller starts it again.
    """
    try:
        tasks = await kopf.spawn_tasks(
            registry=registry, settings=_settings(), clusterwide=True, standalone=True
        )
    finally:
        take_signals()
    await kopf.run_tasks(tasks, ignored=_Everybody())
