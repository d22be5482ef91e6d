"""Leader election: one leader at a time, terms that rise, trust that ends in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

import orjson
import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.lease import LeaseElector, LeaseIdentity, LeaseTimes, Observation, is_free
from fluxqueue.kube.transport import Reply, StreamReply, TransportError
from tests.support.waiting import WAIT_S, Pauses

DURATION_S = 2.0
SLOW = {"times": LeaseTimes(60.0, 0.1, 0.05)}
"""For what has nothing to do with expiry: no pause of the machine may let that happen."""


class LeaseServer:
    """One Lease with the API server's optimistic concurrency, reachable through a transport."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.holders: list[tuple[str, int]] = []

    def answer(self, method: str, body: bytes | None) -> tuple[int, dict[str, Any]]:
        """Handle one request at once."""
        if method == "GET":
            return (200, self.lease) if self.lease is not None else (404, {"kind": "Status"})
        sent = orjson.loads(body or b"")
        if method == "POST" and self.lease is not None:
            return 409, {"kind": "Status", "reason": "AlreadyExists"}
        if method == "PUT":
            if self.lease is None:
                return 404, {"kind": "Status"}
            if sent["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                return 409, {"kind": "Status", "reason": "Conflict"}
        self.version += 1
        self.lease = {**sent, "metadata": {**sent["metadata"], "resourceVersion": self._rv()}}
        spec = sent["spec"]
        entry = (spec["holderIdentity"], spec["leaseTransitions"])
        if not self.holders or self.holders[-1] != entry:
            self.holders.append(entry)
        return 200, self.lease

    def _rv(self) -> str:
        return str(self.version)


class LeaseTransport:
    """A link to the server that a test can cut or slow down."""

    def __init__(self, server: LeaseServer) -> None:
        self.server = server
        self.is_cut = False
        self.delay_s = 0.0

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Deliver, late or not at all."""
        if self.is_cut:
            raise TransportError("cut", is_unsent=True)
        code, answer = self.server.answer(method, body)
        await asyncio.sleep(self.delay_s)
        return Reply(code, {}, orjson.dumps(answer))

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """Leases are not watched here."""
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""


class Candidate:
    """An elector with a log of what it heard."""

    def __init__(self, server: LeaseServer, name: str, **options: Any) -> None:
        self.transport = LeaseTransport(server)
        self.log: list[str] = []
        self.lost_at = 0.0
        client = KubeClient(ClusterConfig("http://lease"), transport=self.transport)
        self.elector = LeaseElector(
            client.reserved(),
            LeaseIdentity("n", "lead", name),
            on_started=lambda term: self.log.append(f"started {term}"),
            on_lost=self._lost,
            **({"times": LeaseTimes(DURATION_S, DURATION_S / 3, 0.05)} | options),
        )
        self.task = asyncio.create_task(self.elector.run())

    def _lost(self) -> None:
        self.lost_at = time.monotonic()
        self.log.append("lost")

    async def end(self) -> None:
        """Stop cleanly."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.fixture
async def campaign() -> AsyncIterator[Callable[..., Candidate]]:
    """Make candidates. All are stopped at the end."""
    made: list[Candidate] = []

    def make(server: LeaseServer, name: str, **options: Any) -> Candidate:
        made.append(Candidate(server, name, **options))
        return made[-1]

    yield make
    for candidate in made:
        await candidate.end()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_first_leads_second_waits_and_follows(
    campaign: Callable[..., Candidate],
) -> None:
    """The second candidate takes over as soon as the first resigns, with the next term."""
    server = LeaseServer()
    first = campaign(server, "a", **SLOW)  # so that expiry cannot be what lets b in
    await _until(lambda: first.elector.is_leader)
    second = campaign(server, "b", **SLOW)
    renewals = server.version
    await _until(lambda: server.version >= renewals + 4)
    assert second.log == []
    assert (first.log, first.elector.term) == (["started 1"], 1)
    await first.end()
    assert first.log == ["started 1", "lost"]
    await _until(lambda: second.elector.is_leader)
    assert server.holders == [("a", 1), ("", 1), ("b", 2)]


async def test_cut_leader_stops_before_the_successor_starts(
    campaign: Callable[..., Candidate],
) -> None:
    """Trust ends locally before the Lease can be taken. The old leader returns as a follower."""
    server = LeaseServer()
    first = campaign(server, "a")
    await _until(lambda: first.elector.is_leader)
    second = campaign(server, "b")
    async with Pauses() as pauses:
        first.transport.is_cut = True
        await _until(lambda: second.elector.is_leader)
        taken_at = time.monotonic()
    assert first.log == ["started 1", "lost"]
    assert not first.elector.is_leader
    assert taken_at - first.lost_at > DURATION_S / 6 - pauses.longest_s
    first.transport.is_cut = False
    renewals = server.version
    await _until(lambda: server.version >= renewals + 3)
    assert first.elector.term == 0


async def test_same_process_again_is_a_new_term(campaign: Callable[..., Candidate]) -> None:
    """Loss and return of one candidate alone: what it did under the old term is fenced off."""
    server = LeaseServer()
    only = campaign(server, "a")
    await _until(lambda: only.elector.is_leader)
    only.transport.is_cut = True
    await _until(lambda: "lost" in only.log)
    only.transport.is_cut = False
    await _until(lambda: only.elector.is_leader)
    assert only.log == ["started 1", "lost", "started 2"]


async def test_slow_answers_do_not_lengthen_trust(campaign: Callable[..., Candidate]) -> None:
    """A renewal that takes longer than the trust window ends the lead at the window's end."""
    server = LeaseServer()
    only = campaign(server, "a")
    await _until(lambda: only.elector.is_leader)
    async with Pauses() as pauses:
        began = time.monotonic()
        only.transport.delay_s = 30
        await _until(lambda: "lost" in only.log)
    assert only.lost_at - began <= DURATION_S + pauses.longest_s


async def test_acquisition_answered_too_late_is_not_a_lead(
    campaign: Callable[..., Candidate],
) -> None:
    """Trust counts from the attempt's start: an answer after that window starts nothing."""
    server = LeaseServer()
    candidate = campaign(server, "a")
    candidate.transport.delay_s = DURATION_S
    await _until(lambda: server.holders == [("a", 1), ("a", 2)])  # so the first answer came
    assert candidate.log == []


async def test_edit_by_somebody_else_is_survived(campaign: Callable[..., Candidate]) -> None:
    """A label put on the Lease makes one renewal conflict. The lead goes on."""
    server = LeaseServer()
    only = campaign(server, "a", **SLOW)
    await _until(lambda: only.elector.is_leader)
    assert server.lease is not None
    server.version += 1
    server.lease["metadata"]["resourceVersion"] = str(server.version)
    edited = server.version
    await _until(lambda: server.version >= edited + 2)
    assert only.log == ["started 1"]


async def test_stolen_lease_ends_the_lead_at_the_next_renewal(
    campaign: Callable[..., Candidate],
) -> None:
    """Another holder in the Lease is believed at once."""
    server = LeaseServer()
    only = campaign(server, "a", **SLOW)
    await _until(lambda: only.elector.is_leader)
    assert server.lease is not None
    theft = {"holderIdentity": "thief", "leaseTransitions": 7, "leaseDurationSeconds": 1}
    spec = {**server.lease["spec"], **theft}
    assert server.answer("PUT", orjson.dumps({**server.lease, "spec": spec}))[0] == 200
    await _until(lambda: only.log == ["started 1", "lost", "started 8"])


async def test_deleted_lease_does_not_repeat_terms(campaign: Callable[..., Candidate]) -> None:
    """The Lease made anew continues above every term this process or its database knows."""
    server = LeaseServer()
    only = campaign(server, "a", term_floor=41, **SLOW)
    await _until(lambda: only.log == ["started 42"])
    server.lease = None
    await _until(lambda: only.log == ["started 42", "lost", "started 43"])


def test_expiry_is_judged_by_our_own_clock() -> None:
    """What the holder wrote as renewTime plays no part. A released Lease is free at once."""
    held = {"spec": {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "1999"}}
    seen = Observation("1", 100.0)
    assert not is_free(held, seen, 114.9)
    assert is_free(held, seen, 115.0)
    assert is_free({"spec": {"holderIdentity": "", "leaseDurationSeconds": 15}}, seen, 100.0)
