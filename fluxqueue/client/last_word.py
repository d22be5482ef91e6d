"""How a job ended whose FluxJob was deleted first, together with its workload.

A Job with ``ttlSecondsAfterFinished: 0`` can go before its FluxJob shows the end. The worker then
emits an Event on the FluxJob (``worker/status.py``). ``handles`` reads it here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.fluxjob.states import FINAL
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import EVENTS
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


async def read_last_word(client: KubeClient, namespace: str, uid: str) -> LastWord | None:
    """Return how the job of the FluxJob ``uid`` ended, or None.

    None: no Event came in time, or this user may not read Events.
    """
    selector = f"involvedObject.uid={uid}"
    with suppress(ApiError, ApiUnavailable, TimeoutError):
        async with asyncio.timeout(WITHIN_S):
            while True:
                there = await client.list(EVENTS, namespace, field_selector=selector)
                found = next(filter(None, map(_final, there.items)), None)
                if found is not None:
                    return found
                await asyncio.sleep(EVERY_S)
    return None


def _final(event: Object) -> LastWord | None:
    is_ours = event.get("reportingComponent") == "fluxqueue" and event.get("reason") in FINAL
    reason = str(event.get("message") or "")
    return LastWord(str(event["reason"]), reason) if is_ours else None
