"""The webhook's server over real TLS on loopback: answers, probes, certificate change, ending.

The client trusts the CA that ``process.certs`` made and checks the name, as an API server does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import signal
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import aiohttp
import pytest
from cryptography import x509

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.certs import pairs as certs
from fluxqueue.process.certs.folder import ensure
from fluxqueue.process.whole_file import write_whole
from fluxqueue.workload import labels
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue.workload.index_placement import IndexPlacement, seal
from fluxqueue.workload.submitter import Submitters
from fluxqueue_webhook.admit import AdmissionAnswer
from fluxqueue_webhook.server import ServerConfig, WebhookServer
from tests.support.workloads import admission_review, bare_pod, batch_job, owner

NAMES = ("localhost", "127.0.0.1")
DAY = timedelta(days=1)
DEADLINE_S = 75.0
POLL_S = 0.02
DRAIN_S = 5.0
"""Two calls have to come in between the signal and the end, on a busy machine too."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a fresh set of certificates."""
    return ensure(tmp_path / "certs", NAMES, now=datetime.now(tz=UTC)).folder


@asynccontextmanager
async def _serving(folder: Path, **options: Any) -> AsyncIterator[WebhookServer]:
    config = ServerConfig(cert_dir=folder, port=0, reload_interval_s=POLL_S, **options)
    async with WebhookServer(config) as server:
        yield server


@asynccontextmanager
async def _client(folder: Path, *, verify: bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield session


async def _until(condition: Callable[[], Any], what: str) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + DEADLINE_S
    while not await condition():
        assert loop.time() < end, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(POLL_S)


async def _get(session: aiohttp.ClientSession, server: WebhookServer, path: str) -> tuple[int, str]:
    async with session.get(f"{server.url}{path}") as answer:
        return answer.status, await answer.text()


def _serial_served(port: int) -> int:
    pem = ssl.get_server_certificate(("127.0.0.1", port))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


async def _serial(server: WebhookServer) -> int:
    return await asyncio.to_thread(_serial_served, server.port)


def _replace_serving(folder: Path, *, now: datetime, validity: timedelta) -> int:
    """Write another serving certificate of the same CA. Gives its serial number."""
    ca = certs.KeyPair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
    made = certs.make_serving(ca, NAMES, now=now, validity=validity)
    write_whole(folder / "tls.key", made.key_pem)
    write_whole(folder / "tls.crt", made.certificate_pem)
    return made.certificate.serial_number


async def test_mutates_over_verified_tls(folder: Path) -> None:
    async with _serving(folder) as server, _client(folder) as session:
        for obj in (batch_job(), bare_pod()):
            async with session.post(f"{server.url}/mutate", json=admission_review(obj)) as answer:
                assert answer.status == 200
                assert answer.content_type == "application/json"
                response = (await answer.json())["response"]
            assert response["allowed"] is True
            patch = json.loads(base64.b64decode(response["patch"]))
            assert any(operation["path"].endswith("/schedulingGates") for operation in patch)


CONTROLLER = "system:serviceaccount:kube-system:job-controller"
KEY = b"k" * 32


def _placed_review(**annotations: str) -> dict[str, Any]:
    until_s = time.time() + 600
    placed = IndexPlacement(7, ("n1", "n2"), {"cpu": 1000, "pods": 1}, until_s=until_s)
    sealed = seal(placed, "uid-gang", KEY) or ""
    notes = {labels.PLACEMENT: sealed, labels.COMPLETION_INDEX: "1", **annotations}
    meta = {"annotations": notes, "ownerReferences": [owner("Job", "gang")]}
    review = admission_review(bare_pod(meta=meta, schedulingGates=[{"name": labels.GATE}]))
    review["request"] |= {"userInfo": {"username": CONTROLLER}, "uid": str(UUID(int=1))}
    return review


async def test_a_pod_with_a_placement_is_placed_and_never_refused(folder: Path) -> None:
    """One that is not a Pod at all, or is too large to be read at once, comes as it is."""
    submitters = Submitters(controllers=frozenset({CONTROLLER}))
    settings = AdmitSettings(submitters=submitters, placement_key=KEY)
    damaged = _placed_review()
    damaged["request"]["object"]["metadata"]["ownerReferences"] = [7]
    large = _placed_review(note="x" * 2**18)
    # As an API server writes it: the envelope comes first.
    head = '"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{'
    uid = large["request"].pop("uid")
    body = json.dumps(large["request"])[1:]
    written = f'{{{head}"uid":"{uid}",{body}}}'
    async with _serving(folder, admit=settings) as server, _client(folder) as session:

        async def ask(text: str) -> dict[str, Any]:
            async with session.post(f"{server.url}/mutate/place", data=text) as answer:
                assert answer.status == 200
                found: dict[str, Any] = (await answer.json())["response"]
                assert found["allowed"] is True
                return found

        patch = json.loads(base64.b64decode((await ask(json.dumps(_placed_review())))["patch"]))
        assert {"op": "remove", "path": "/spec/schedulingGates/0"} in patch
        selector = {"op": "add", "path": "/spec/nodeSelector", "value": {labels.HOSTNAME: "n2"}}
        assert selector in patch
        for text in (json.dumps(damaged), written, json.dumps(admission_review(batch_job()))):
            assert "patch" not in await ask(text)
        async with session.post(f"{server.url}/mutate/place", data="{") as answer:
            assert answer.status == 400


@pytest.mark.parametrize("path", ["/mutate", "/mutate/place"])
async def test_an_object_that_its_defaults_make_huge_is_answered_in_words(
    folder: Path, path: str
) -> None:
    """An object of 3 MiB has a million empty containers: with their defaults 100 times as much."""
    review = admission_review(bare_pod(meta={"annotations": {"note": "x" * 40_000_000}}))
    body = json.dumps({**review["request"], "uid": None})[1:]
    head = '"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{'
    text = f'{{{head}"uid":"{UUID(int=3)}",{body}}}'
    async with _serving(folder) as server, _client(folder) as session:
        async with session.post(f"{server.url}{path}", data=text) as answer:
            assert answer.status == 200
            response = (await answer.json())["response"]
        assert response["uid"] == str(UUID(int=3))
        assert response["allowed"] is (path == "/mutate/place")
        if path == "/mutate":
            assert "Fix: use fewer containers" in response["status"]["message"]
        async with session.post(f"{server.url}{path}", data="x" * 40_000_000) as answer:
            assert answer.status == 400


class Sender:
    """A client that sends a body over TLS, as much as is taken, and counts it."""

    def __init__(self, folder: Path, server: WebhookServer) -> None:
        self._context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        self._port = server.port
        self.sent = 0

    async def send(self, head: str, chunk: bytes, until_s: float = 30.0) -> str:
        """Send ``chunk`` again and again until the connection ends. Returns the answer."""
        reader, writer = await asyncio.open_connection("localhost", self._port, ssl=self._context)
        writer.write(head.encode())
        sending = asyncio.create_task(self._send(writer, chunk))
        try:
            async with asyncio.timeout(until_s):
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"Content-Length: (\d+)", head)
                assert length is not None
                body = await reader.readexactly(int(length[1]))
                with suppress(ConnectionError, ssl.SSLError):
                    assert await reader.read() == b"", "the connection ends"
                return (head + body).decode()
        finally:
            sending.cancel()
            writer.transport.abort()

    async def _send(self, writer: asyncio.StreamWriter, chunk: bytes) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while chunk:
                writer.write(chunk)
                self.sent += len(chunk)
                await writer.drain()


CHUNK = b"x" * 2**16
BUFFERS_MAX = 64 * 2**20
"""What the two systems and the two programs keep of a body that is not read."""


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("path", ["/mutate", "/mutate/place"])
async def test_the_rest_of_a_body_that_is_too_large_is_not_read(
    folder: Path, path: str, *, is_chunked: bool
) -> None:
    """It is answered while its client still sends, and then the connection ends."""
    begin = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{'
    begin += f'"uid":"{UUID(int=5)}",'.encode() + b" " * 2**17
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n"
    if is_chunked:
        head += f"Transfer-Encoding: chunked\r\n\r\n{len(begin):x}\r\n{begin.decode()}\r\n"
        chunk = f"{len(CHUNK):x}\r\n".encode() + CHUNK + b"\r\n"
    else:
        head += f"Content-Length: {2**40}\r\n\r\n{begin.decode()}"
        chunk = CHUNK
    async with _serving(folder) as server, _client(folder) as session:
        sender = Sender(folder, server)
        sending = asyncio.create_task(sender.send(head, chunk))
        assert (await _get(session, server, "/healthz"))[0] == 200
        answer = await sending
        head, _, body = answer.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        assert "connection: close" in head.lower()
        response = json.loads(body)["response"]
        assert response["uid"] == str(UUID(int=5))
        assert response["allowed"] is (path == "/mutate/place")
        assert sender.sent < BUFFERS_MAX
        assert (await _get(session, server, "/healthz"))[0] == 200


async def test_a_body_that_does_not_come_is_not_awaited_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fluxqueue_webhook.server._BODY_MAX_S", 0.1)
    async with _serving(folder) as server:
        answer = await Sender(folder, server).send(
            "POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b""
        )
        assert answer.startswith("HTTP/1.1 408")


@pytest.mark.parametrize("timeout", ["5s", "30s", "1m0s", "", "soon"])
async def test_the_patience_of_the_api_server_may_be_told(folder: Path, timeout: str) -> None:
    async with _serving(folder) as server, _client(folder) as session:
        url = f"{server.url}/mutate?timeout={timeout}"
        async with session.post(url, json=admission_review(bare_pod())) as answer:
            assert answer.status == 200


async def test_an_answer_comes_while_the_api_server_still_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An admission that waits uses no processor time, as on a machine with much other work."""
    goes_on = threading.Event()

    def wait(*_: object, **__: object) -> AdmissionAnswer:
        goes_on.wait()
        raise AssertionError("its answer is not used")

    monkeypatch.setattr("fluxqueue_webhook.server.admit", wait)
    async with _serving(folder) as server, _client(folder) as session:
        url = f"{server.url}/mutate?timeout=1s"
        async with session.post(url, json=admission_review(batch_job())) as answer:
            goes_on.set()
            response = (await answer.json())["response"]
    assert response["allowed"] is False
    assert "try again" in response["status"]["message"]


@pytest.mark.parametrize("path", ["/mutate", "/mutate/place"])
async def test_an_answer_comes_without_the_rest_of_a_body(folder: Path, path: str) -> None:
    """The rest never comes. The envelope is enough for a refusal, and for a gate."""
    begin = '{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{'
    begin += f'"uid":"{UUID(int=6)}",' + " " * 2**17
    head = f"POST {path}?timeout=1s HTTP/1.1\r\nHost: x\r\nContent-Length: {2**18 - 1}\r\n\r\n"
    async with _serving(folder) as server:
        answer = await Sender(folder, server).send(head + begin, b"")
    assert answer.startswith("HTTP/1.1 200")
    response = json.loads(answer.partition("\r\n\r\n")[2])["response"]
    assert response["uid"] == str(UUID(int=6))
    assert response["allowed"] is (path == "/mutate/place")


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"kind": "Pod"}', b"\xff"])
async def test_what_is_no_review_is_a_400_and_the_server_lives_on(
    folder: Path, body: bytes
) -> None:
    async with _serving(folder) as server, _client(folder) as session:
        async with session.post(f"{server.url}/mutate", data=body) as answer:
            assert answer.status == 400
        assert (await _get(session, server, "/healthz"))[0] == 200


HOSTILE = [
    {"kind": "PlacementReview", "spec": 7},
    {"kind": "PlacementReview", "spec": {"changes": [1], "fluxJob": {"a": 1}}},
    {"kind": "FluxJob", "spec": {"steeredBy": "me"}, "status": {"state": "Dancing"}},
]


@pytest.mark.parametrize("obj", HOSTILE)
async def test_an_object_of_wrong_types_is_refused_in_words(
    folder: Path, obj: dict[str, Any]
) -> None:
    """The API server checks custom resources only after admission."""
    group = "jobs.converged-computing.org"
    review = admission_review({"apiVersion": f"{group}/v1alpha1", "metadata": {}, **obj})
    review["request"]["kind"] |= {"group": group, "version": "v1alpha1"}
    review["request"] |= {"operation": "UPDATE", "oldObject": review["request"]["object"]}
    async with _serving(folder) as server, _client(folder) as session:
        async with session.post(f"{server.url}/mutate", json=review) as answer:
            assert answer.status == 200
            response = (await answer.json())["response"]
        assert response["allowed"] is False
        assert "must be" in response["status"]["message"]


async def test_probes_are_answered_while_admissions_are_worked_on(folder: Path) -> None:
    """What a request costs must not look like a server that is dead."""
    meta = {"annotations": {"fluxqueue/begin-time": "+" + "1" * 200_000 + "x"}}
    hostile = admission_review(batch_job(meta={"uid": "u", **meta}))
    async with _serving(folder) as server, _client(folder) as session:

        async def post() -> int:
            async with session.post(f"{server.url}/mutate", json=hostile) as answer:
                return answer.status

        posts = [asyncio.create_task(post()) for _ in range(20)]
        for _ in range(10):
            assert (await _get(session, server, "/healthz"))[0] == 200
        assert set(await asyncio.gather(*posts)) == {200}


async def test_a_large_object_is_read_whole(folder: Path) -> None:
    """Jobs may be up to 3 MiB. Aiohttp's own limit is 1 MiB."""
    job = batch_job(meta={"annotations": {"note": "x" * 3_000_000}})
    async with (
        _serving(folder) as server,
        _client(folder) as session,
        session.post(f"{server.url}/mutate", json=admission_review(job)) as answer,
    ):
        assert (await answer.json())["response"]["allowed"] is True


async def test_probes_and_metrics(folder: Path) -> None:
    async with _serving(folder) as server, _client(folder) as session:
        assert await _get(session, server, "/healthz") == (200, "ok\n")
        assert await _get(session, server, "/readyz") == (200, "ok\n")
        await session.post(f"{server.url}/mutate", json=admission_review(batch_job()))
        _, text = await _get(session, server, "/metrics")
        assert 'reviews_total{kind="Job",verdict="taken"} 1' in text


async def test_a_renewed_certificate_is_served_without_restart(folder: Path) -> None:
    async with _serving(folder) as server, _client(folder) as session:
        first = await _serial(server)
        renewed = _replace_serving(folder, now=datetime.now(tz=UTC), validity=DAY)
        assert renewed != first

        async def is_served() -> bool:
            return await _serial(server) == renewed

        await _until(is_served, "the new certificate")
        assert (await _get(session, server, "/readyz"))[0] == 200


@pytest.mark.parametrize("damage", ["half a pair", "junk", "missing"])
async def test_a_broken_replacement_keeps_the_old_certificate_until_it_is_whole(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with _serving(folder) as server, _client(folder) as session:
        first = await _serial(server)
        if damage == "half a pair":
            stranger = certs.make_ca(now=datetime.now(tz=UTC), validity=DAY)
            (folder / "tls.key").write_bytes(stranger.key_pem)
        elif damage == "junk":
            (folder / "tls.crt").write_bytes(b"junk")
        else:
            (folder / "tls.crt").unlink()

        async def is_noticed() -> bool:
            return "not usable" in caplog.text

        await _until(is_noticed, "the warning")
        assert await _serial(server) == first
        assert (await _get(session, server, "/readyz"))[0] == 200
        renewed = _replace_serving(folder, now=datetime.now(tz=UTC), validity=DAY)

        async def is_served() -> bool:
            return await _serial(server) == renewed

        await _until(is_served, "the repaired certificate")
        assert caplog.text.count("not usable") <= 2, "a broken file must not fill the log"


async def test_an_expired_certificate_is_not_ready_until_renewed(folder: Path) -> None:
    _replace_serving(folder, now=datetime.now(tz=UTC) - 2 * DAY, validity=DAY)
    async with _serving(folder) as server, _client(folder, verify=False) as session:
        status, text = await _get(session, server, "/readyz")
        assert status == 503
        assert "certificate" in text
        assert (await _get(session, server, "/healthz"))[0] == 200, "restarting would not help"
        _replace_serving(folder, now=datetime.now(tz=UTC), validity=DAY)

        async def is_ready() -> bool:
            return (await _get(session, server, "/readyz"))[0] == 200

        await _until(is_ready, "readiness")


async def test_a_stopping_server_is_unready_and_still_answers(folder: Path) -> None:
    async with _serving(folder, drain_s=DRAIN_S) as server, _client(folder) as session:
        stopping = asyncio.create_task(server.stop())

        async def is_unready() -> bool:
            return (await _get(session, server, "/readyz"))[0] == 503

        await _until(is_unready, "unreadiness")
        review = admission_review(bare_pod())
        async with session.post(f"{server.url}/mutate", json=review) as answer:
            assert answer.status == 200
        await stopping
        with pytest.raises(aiohttp.ClientConnectionError):
            await _get(session, server, "/healthz")


async def test_no_certificate_and_a_taken_port_are_said_clearly(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSettings, match="fluxqueue certs"):
        await WebhookServer(ServerConfig(cert_dir=tmp_path / "none")).start()
    async with _serving(folder) as server:
        taken = ServerConfig(cert_dir=folder, port=server.port)
        with pytest.raises(InvalidSettings, match=str(server.port)):
            await WebhookServer(taken).start()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_the_process_says_ready_and_ends_clean(folder: Path, number: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue_webhook", "--cert-dir", str(folder), "--host", "127.0.0.1",
        "--port", "0", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), DEADLINE_S)).decode()
        word, url = line.split()
        assert word == "ready"
        async with _client(folder) as session, session.get(f"{url}/readyz") as answer:
            assert answer.status == 200
        process.send_signal(number)
        assert await asyncio.wait_for(process.wait(), DEADLINE_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_the_process_without_certificate_exits_2_with_one_line(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue_webhook", "--cert-dir", str(tmp_path), "--port", "0",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, errors = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    assert process.returncode == 2
    assert "fluxqueue certs" in errors.decode()
    assert "Traceback" not in errors.decode()
