"""Certificates on a cluster: whatever is lost, blanked, spoilt or expired is put right.

The webhook here is the real server. Its Secret is mounted as a kubelet mounts it (a symlink that is
swapped), and its caller trusts what stands in the webhook configuration, as an API server does.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from fluxqueue.clock import ManualClock
from fluxqueue.controller.certificates import CertificateKeeper, CertificateNames
from fluxqueue.errors import ApiUnavailable, Conflict, Invalid, InvalidInput, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import MUTATING_WEBHOOKS, NAMESPACES, SECRETS
from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
from fluxqueue.process.certs.pairs import service_names
from fluxqueue.process.certs.rotation import HeldCertificates, Lives, read_bundle, read_held
from fluxqueue_webhook.server import ServerConfig, WebhookServer
from localcluster import LocalCluster, LocalClusterConfig
from tests.support.clusters import InProcessTransport, config_of
from tests.support.control_plane import missing_reason
from tests.support.faults import FaultyTransport
from tests.support.waiting import eventually
from tests.support.workloads import admission_review, batch_job

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
NAMESPACE, SECRET, CONFIGURATION, SERVICE = "fq-certs", "hook-tls", "fq-certs", "hook"
NAMES = CertificateNames(NAMESPACE, SECRET, CONFIGURATION, service_names(SERVICE, NAMESPACE))
DAY_S = 86400


@pytest_asyncio.fixture(params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[KubeClient]:
    """A cluster with our namespace and a webhook configuration with an empty caBundle."""
    if request.param == "real":
        if reason := missing_reason():
            pytest.skip(reason)
        async with KubeClient(request.getfixturevalue("control_plane").config) as made:
            await _prepare(made)
            yield made
            return
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as made:
            await _prepare(made)
            yield made


async def _prepare(client: KubeClient) -> None:
    with suppress(Conflict):
        await client.create(NAMESPACES, None, {"metadata": {"name": NAMESPACE}})
    with suppress(NotFound):
        await client.delete(SECRETS, NAMESPACE, SECRET)
    with suppress(NotFound):
        await client.delete(MUTATING_WEBHOOKS, None, CONFIGURATION)
    await _make_configuration(client)


def _configuration() -> dict[str, Any]:
    return WebhookConfiguration(WebhookEndpoint(service=SERVICE, namespace=NAMESPACE), b"").build()


async def _make_configuration(client: KubeClient) -> None:
    # Selects a namespace that does not exist: on a real server no other request must wait for us.
    body = _configuration()
    body["metadata"]["name"] = CONFIGURATION
    for hook in body["webhooks"]:
        hook["clientConfig"].pop("caBundle", None)
        hook["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": "fq-none"}}
    await client.create(MUTATING_WEBHOOKS, None, body)


def _keeper(client: KubeClient, clock: ManualClock | None = None) -> CertificateKeeper:
    return CertificateKeeper(client, clock or _now(), NAMES)


def _now(days_ago: int = 0) -> ManualClock:
    return ManualClock(int(time.time()) - days_ago * DAY_S)


async def _held(client: KubeClient) -> HeldCertificates:
    secret = await client.get(SECRETS, NAMESPACE, SECRET)
    return read_held({key: base64.b64decode(text) for key, text in secret["data"].items()})


async def _bundles(client: KubeClient) -> list[str]:
    found = await client.get(MUTATING_WEBHOOKS, None, CONFIGURATION)
    return [hook["clientConfig"].get("caBundle", "") for hook in found["webhooks"]]


async def _assert_right(client: KubeClient) -> HeldCertificates:
    """The Secret is whole, and every webhook trusts what it says."""
    held = await _held(client)
    assert held.ca is not None
    assert held.serving is not None
    held.serving.certificate.verify_directly_issued_by(held.ca.certificate)
    bundles = await _bundles(client)
    assert len(bundles) == len(_configuration()["webhooks"])
    for bundle in bundles:
        assert read_bundle(base64.b64decode(bundle)) == held.trusted
    return held


async def test_made_from_nothing_and_then_left_alone(client: KubeClient) -> None:
    keeper = _keeper(client)
    await keeper.keep()
    held = await _assert_right(client)
    secret = await client.get(SECRETS, NAMESPACE, SECRET)
    assert set(secret["data"]) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert secret["metadata"]["labels"]["fluxqueue/certificates"] == "self-made"
    await keeper.keep()
    again = await client.get(SECRETS, NAMESPACE, SECRET)
    assert again["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"]
    assert held.serving is not None
    found = held.serving.certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert f"{SERVICE}.{NAMESPACE}.svc" in found.value.get_values_for_type(x509.DNSName)


@pytest.mark.parametrize("bundle", ["", "bm8gY2VydGlmaWNhdGU="])
async def test_a_blanked_bundle_is_filled_with_the_same_ca(client: KubeClient, bundle: str) -> None:
    keeper = _keeper(client)
    await keeper.keep()
    before = await _held(client)
    path = "/webhooks/1/clientConfig/caBundle"
    if bundle and client.config.server and not await _accepts_junk(client, path, bundle):
        return  # a real API server refuses such a bundle, so it cannot be spoilt so
    if not bundle:
        await client.request(
            "PATCH",
            MUTATING_WEBHOOKS.path(None, CONFIGURATION),
            body=[{"op": "remove", "path": path}],
            content_type="application/json-patch+json",
        )
    await keeper.keep()
    assert await _assert_right(client) == before, "no reason for new certificates"


async def _accepts_junk(client: KubeClient, path: str, bundle: str) -> bool:
    try:
        await client.request(
            "PATCH",
            MUTATING_WEBHOOKS.path(None, CONFIGURATION),
            body=[{"op": "replace", "path": path, "value": bundle}],
            content_type="application/json-patch+json",
        )
    except Invalid:
        return False
    return True


async def test_a_deleted_secret_is_made_again_and_the_former_ca_trusted_for_a_while(
    client: KubeClient,
) -> None:
    clock = _now()
    keeper = _keeper(client, clock)
    await keeper.keep()
    before = await _assert_right(client)
    await client.delete(SECRETS, NAMESPACE, SECRET)
    await keeper.keep()
    after = await _assert_right(client)
    assert before.ca is not None
    assert after.ca != before.ca
    assert before.ca.certificate in after.trusted, "webhooks still serve what it signed"
    clock.advance(Lives().overlap.total_seconds())
    await keeper.keep()
    assert len((await _assert_right(client)).trusted) == 1


async def test_an_expired_set_is_replaced(client: KubeClient) -> None:
    clock = _now(days_ago=4000)
    await _keeper(client, clock).keep()
    old = await _assert_right(client)
    await _keeper(client).keep()
    new = await _assert_right(client)
    assert new.ca != old.ca
    assert new.serving != old.serving
    assert not set(new.trusted) & set(old.trusted)


async def test_garbage_in_our_secret_is_repaired(client: KubeClient) -> None:
    keeper = _keeper(client)
    await keeper.keep()
    junk = base64.b64encode(b"junk").decode()
    await client.patch(
        SECRETS, NAMESPACE, SECRET, {"data": {"tls.crt": junk, "ca.key": junk, "other": junk}}
    )
    await keeper.keep()
    await _assert_right(client)


async def test_a_secret_of_others_is_refused_and_left_alone(client: KubeClient) -> None:
    theirs = {"tls.crt": base64.b64encode(b"theirs").decode()}
    await client.create(SECRETS, NAMESPACE, {"metadata": {"name": SECRET}, "data": theirs})
    with pytest.raises(InvalidInput, match="did not make") as caught:
        await _keeper(client).keep()
    assert "FLUXQUEUE_CERT_SECRET" in str(caught.value)
    assert (await client.get(SECRETS, NAMESPACE, SECRET))["data"] == theirs
    assert not any(await _bundles(client))


async def test_an_empty_secret_is_adopted(client: KubeClient) -> None:
    """A chart may ship it, so that its removal takes the keys along."""
    mine = {"metadata": {"name": SECRET, "labels": {"app": "x"}}, "type": "Opaque"}
    await client.create(SECRETS, NAMESPACE, mine)
    await _keeper(client).keep()
    await _assert_right(client)
    kept = await client.get(SECRETS, NAMESPACE, SECRET)
    assert kept["metadata"]["labels"]["app"] == "x"


async def test_without_a_configuration_nothing_is_made_and_nothing_comes_back(
    client: KubeClient,
) -> None:
    """So an uninstallation may delete the Secret while the controller still runs."""
    keeper = _keeper(client)
    await keeper.keep()
    await client.delete(MUTATING_WEBHOOKS, None, CONFIGURATION)
    await client.delete(SECRETS, NAMESPACE, SECRET)
    await keeper.keep()
    with pytest.raises(NotFound):
        await client.get(SECRETS, NAMESPACE, SECRET)


async def test_two_controllers_at_once_end_with_one_set_that_is_always_trusted(
    client: KubeClient,
) -> None:
    """Both believe to lead while the Secret is deleted and the bundle blanked again and again."""
    keepers = [_keeper(client), _keeper(client)]
    for _ in range(5):
        with suppress(NotFound):
            await client.delete(SECRETS, NAMESPACE, SECRET)
        outcomes = await asyncio.gather(
            *(_keep_and_look(client, keeper) for keeper in keepers for _ in range(3)),
            return_exceptions=True,
        )
        for outcome in outcomes:
            assert outcome is None or isinstance(outcome, Conflict | Invalid), outcome
    for keeper in keepers:
        await keeper.keep()
    await _assert_right(client)


async def _keep_and_look(client: KubeClient, keeper: CertificateKeeper) -> None:
    """A certificate that will be served must be trusted at every moment."""
    await asyncio.gather(keeper.keep(), _look(client))


async def _look(client: KubeClient) -> None:
    for _ in range(10):
        with suppress(NotFound):
            serving = (await _held(client)).serving
            bundles = await _bundles(client)
            if serving is not None:
                cas = read_bundle(base64.b64decode(bundles[0]))
                assert any(_has_signed(ca, serving.certificate) for ca in cas)
        await asyncio.sleep(0.01)


def _has_signed(ca: x509.Certificate, serving: x509.Certificate) -> bool:
    try:
        serving.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError):
        return False
    return True


async def test_answers_that_are_lost_do_no_harm() -> None:
    """Half of all requests fail, some of them after they were acted upon."""
    async with LocalCluster(QUIET) as cluster:
        inner = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=inner) as admin:
            await _prepare(admin)
            faulty = FaultyTransport(inner, seed=3, rate=0.5)
            async with KubeClient(config_of(cluster), transport=faulty, attempts_max=1) as client:
                keeper = _keeper(client)
                for _ in range(60):
                    with suppress(ApiUnavailable, Conflict, Invalid):
                        await keeper.keep()
                        break
            assert faulty.told.total() > 1
            await _assert_right(admin)


# --- the whole way, over TLS ---------------------------------------------------------------------


async def _mount(client: KubeClient, folder: Path) -> None:
    """Bring the Secret into the folder as a kubelet does: all files at once, by one symlink."""
    secret = await client.get(SECRETS, NAMESPACE, SECRET)
    wanted = {key: base64.b64decode(secret["data"][key]) for key in ("tls.crt", "tls.key")}
    link = folder / "..data"
    if link.exists() and all((link / key).read_bytes() == text for key, text in wanted.items()):
        return
    version = folder / f"..{secret['metadata']['resourceVersion']}"
    version.mkdir(exist_ok=True)
    for key, text in wanted.items():
        (version / key).write_bytes(text)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(version.name)
    fresh.rename(link)
    for key in wanted:
        if not (folder / key).is_symlink():
            (folder / key).symlink_to(Path("..data") / key)


class _Caller:
    """Calls the webhook without a pause, each time on a new connection, as an API server would."""

    def __init__(self, client: KubeClient, server: WebhookServer) -> None:
        self._client, self._server = client, server
        self.calls = 0
        self.refused: list[str] = []
        self.serials: list[int] = []

    async def call(self) -> None:
        """One review, under the bundle as it was a moment ago."""
        bundle = (await _bundles(self._client))[0]
        pem = base64.b64decode(bundle).decode()
        await asyncio.sleep(0.02)
        context = ssl.create_default_context(cadata=pem)
        url = f"https://127.0.0.1:{self._server.port}/mutate"
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as session:
            review = admission_review(batch_job())
            self.calls += 1
            try:
                async with session.post(
                    url, json=review, server_hostname=f"{SERVICE}.{NAMESPACE}.svc"
                ) as answer:
                    assert (await answer.json())["response"]["allowed"]
            except aiohttp.ClientError as error:
                self.refused.append(repr(error))

    async def run(self) -> None:
        while True:
            await self.call()

    async def note_serial(self) -> int:
        """The serial number of what is served now."""
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self._server.port))
        serial = x509.load_pem_x509_certificate(pem.encode()).serial_number
        if serial not in self.serials:
            self.serials.append(serial)
        return serial


@asynccontextmanager
async def _calling(caller: _Caller) -> AsyncIterator[None]:
    running = asyncio.create_task(caller.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_a_whole_rotation_without_one_refused_call(
    client: KubeClient, tmp_path: Path
) -> None:
    """Ten months in seconds: the certificate is renewed, then the CA, then the Secret is lost.

    TLS looks at the machine's own clock, so the story ends today and began 280 days ago.
    """
    clock = _now(days_ago=280)
    lives = Lives(serving=_days(300), ca=_days(360), overlap=_days(1))
    keeper = CertificateKeeper(client, clock, NAMES, lives)
    await keeper.keep()
    await _mount(client, tmp_path)
    config = ServerConfig(cert_dir=tmp_path, port=0, reload_interval_s=0.02)
    async with WebhookServer(config) as server:
        caller = _Caller(client, server)
        cas = {(await _assert_right(client)).trusted[0]}
        async with _calling(caller):
            for day in range(0, 280, 20):
                if day == 260:
                    await client.delete(SECRETS, NAMESPACE, SECRET)
                clock.advance(20 * DAY_S)
                await keeper.keep()
                before = caller.calls
                await eventually(_more(caller, before + 2), "calls between Secret and mount")
                await _mount(client, tmp_path)
                wanted = (await _assert_right(client)).serving
                assert wanted is not None
                serial = wanted.certificate.serial_number
                await eventually(_serves(caller, serial), "the new certificate is served")
                before = caller.calls
                await eventually(_more(caller, before + 2), "calls after it")
                cas.add((await _held(client)).trusted[0])
        assert caller.refused == []
        assert caller.calls > 50
        assert len(caller.serials) == 4, "first, renewed, new CA, lost Secret"
        assert len(cas) == 3


def _days(number: int) -> Any:
    return Lives().serving / 365 * number


def _more(caller: _Caller, number: int) -> Any:
    async def look() -> bool:
        return caller.calls >= number

    return look


def _serves(caller: _Caller, serial: int) -> Any:
    async def look() -> bool:
        return await caller.note_serial() == serial

    return look
