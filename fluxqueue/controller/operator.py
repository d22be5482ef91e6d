"""What kopf runs: FluxJob resources and start-up.

FluxJobs are few and slow, which is what kopf is good at; pods, nodes and BatchJobs come through our
own informers (``observer``). Handlers only pass things on. kopf's own peering is off: one active
controller is chosen by a Lease (``main``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import kopf

from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import FLUXJOBS


def build_registry(
    config: ClusterConfig,
    *,
    on_fluxjob_deleted: Callable[[str], None],
    on_fluxjob_let_go: Callable[[str, str, str], Awaitable[None]],
) -> kopf.OperatorRegistry:
    """Build the handlers of one operator.

    Parameters
    ----------
    on_fluxjob_deleted : told the UID of the workload whose FluxJob is gone.
    on_fluxjob_let_go : told namespace, name and UID of a FluxJob without an owner: its workload was
        deleted with the wish to leave behind what it owns, so no garbage collector will take it.
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
            proxy_url=config.proxy_url,
        )

    @kopf.on.startup(registry=registry)
    def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.posting.enabled = False
        settings.scanning.disabled = True
        settings.peering.standalone = True

    @kopf.on.event(FLUXJOBS.group, FLUXJOBS.version, FLUXJOBS.plural, registry=registry)
    async def fluxjob_event(event: Mapping[str, Any], body: Mapping[str, Any], **_: Any) -> None:
        meta = body["metadata"]
        if event.get("type") == "DELETED":
            on_fluxjob_deleted(body["spec"]["workload"]["uid"])
        elif not meta.get("ownerReferences") and not meta.get("deletionTimestamp"):
            await on_fluxjob_let_go(meta["namespace"], meta["name"], meta["uid"])

    return registry


async def run_operator(registry: kopf.OperatorRegistry, *, stop: asyncio.Event) -> None:
    """Run kopf until ``stop`` is set, or until it ends by a signal, which then sets ``stop``."""
    await kopf.operator(
        registry=registry,
        clusterwide=True,
        standalone=True,
        stop_flag=stop,
    )
