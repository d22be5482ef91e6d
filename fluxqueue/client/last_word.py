"""How a job ended whose FluxJob was deleted first, together with its workload.

A Job with ``ttlSecondsAfterFinished: 0`` can go before its FluxJob shows the end. The worker then
emits an Event on the FluxJob (``worker/status.py``). ``handles`` reads it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.fluxjob.states import FINAL
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import EVENTS, FLUXJOBS
from fluxqueue.workload.objects import Object

WITHIN_S = 30.0
"""Longest time until the Event is there: pods that still end keep a job from its end, and a busy
worker writes statuses and Events later."""

EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class LastWord:
    """The final state of a job and its reason."""

    state: str
    reason: str


async def read_last_word(client: KubeClient, fluxjob: Object) -> LastWord | None:
    """Return how the job of a FluxJob that is gone ended, or None.

    None: no Event came in time, or this user may not read Events.
    """
    meta = fluxjob["metadata"]
    # By name: a FluxJob that was made again in its place has another UID, and the same workload.
    selector = f"involvedObject.kind={FLUXJOBS.kind},involvedObject.name={meta['name']}"
    uids = {meta["uid"], fluxjob["spec"]["workload"]["uid"]}
    with suppress(TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            while True:
                try:
                    there = await client.list(EVENTS, meta["namespace"], field_selector=selector)
                except ApiError:
                    return None
                except ApiUnavailable:
                    pass
                else:
                    for found in filter(None, (_final(one, uids) for one in there.items)):
                        return found
                await asyncio.sleep(EVERY_S)
    return None


def _final(event: Object, uids: Container[str]) -> LastWord | None:
    is_ours = event.get("reportingComponent") == "fluxqueue" and event.get("reason") in FINAL
    of = (event["involvedObject"], event.get("related") or {})
    if not is_ours or not any(one.get("uid") in uids for one in of):
        return None
    return LastWord(str(event["reason"]), str(event.get("message") or ""))
