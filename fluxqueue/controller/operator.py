"""What kopf runs: FluxJob resources and start-up.

FluxJobs are few and slow, which is what kopf is good at; pods, nodes and BatchJobs come through our
own informers (``observer``). Handlers only pass things on. kopf's own peering is off: one active
controller is chosen by a Lease (``main``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.kubernetes_package import import_without_validator
from fluxqueue.kube.resources import FLUXJOBS

import_without_validator()  # before kopf imports it in another way
import kopf  # noqa: E402

STOP_S = 15.0
"""How long kopf may take to end; its thread does not outlive the process."""


def build_registry(
    config: ClusterConfig,
    *,
    on_fluxjob_deleted: Callable[[str], None],
    on_fluxjob_let_go: Callable[[str, str, str], Coroutine[Any, Any, None]],
) -> kopf.OperatorRegistry:
    """Build the handlers of one operator; what they pass on is run in the loop of this call.

    Parameters
    ----------
    on_fluxjob_deleted : told the UID of the workload whose FluxJob is gone.
    on_fluxjob_let_go : told namespace, name and UID of a FluxJob without an owner: its workload was
        deleted with the wish to leave behind what it owns, so no garbage collector will take it.
    """
    registry = kopf.OperatorRegistry()
    home = asyncio.get_running_loop()

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
            home.call_soon_threadsafe(on_fluxjob_deleted, body["spec"]["workload"]["uid"])
        elif not meta.get("ownerReferences") and not meta.get("deletionTimestamp"):
            letting_go = on_fluxjob_let_go(meta["namespace"], meta["name"], meta["uid"])
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(letting_go, home))

    return registry


async def run_operator(registry: kopf.OperatorRegistry, *, stop: asyncio.Event) -> None:
    """Run kopf in a thread and an event loop of its own, until ``stop`` is set.

    Whenever kopf ends, also by an error (a watch that is answered with 410 is one), it cancels
    every task of its loop that is not its own: the observer and the election must not be there.

    Raises
    ------
    Exception
        What made kopf end; the caller starts it again.
    """
    home = asyncio.get_running_loop()
    ended: asyncio.Future[None] = home.create_future()
    stops: list[Callable[[], object]] = []

    async def operate() -> None:
        flag, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(flag.set))
        await kopf.operator(registry=registry, clusterwide=True, standalone=True, stop_flag=flag)

    def report(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_exception(error) if error is not None else ended.set_result(None)

    def run() -> None:
        outcome: BaseException | None = None
        try:
            asyncio.run(operate())
        except BaseException as error:  # noqa: BLE001  told to the loop that waits
            outcome = error
        with suppress(RuntimeError):  # that loop may have ended meanwhile
            home.call_soon_threadsafe(report, outcome)

    threading.Thread(target=run, name="kopf", daemon=True).start()
    stopping = asyncio.create_task(stop.wait())
    try:
        waited: set[asyncio.Future[Any]] = {ended, stopping}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        for end in stops:
            with suppress(RuntimeError):  # its loop is closed
                end()
    async with asyncio.timeout(STOP_S):
        await ended
