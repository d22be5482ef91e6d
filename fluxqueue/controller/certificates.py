"""Keep the webhook's certificates in the cluster correct: a Secret and the caBundle.

The controller runs it while it holds the Lease. It does not need the database, because certificates
expire also while that is unavailable.

It is level-based. Each round reads the Secret and the webhook configuration, and asks
``certs.rotation.plan``. It writes the difference under the resourceVersions that it read. So two
controllers that both believe to lead cannot undo each other's work.

Without a webhook configuration the webhook is never called, and nothing is made.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cryptography import x509

from fluxqueue.clock import Clock
from fluxqueue.errors import (
    ApiUnavailable,
    Conflict,
    FluxQueueError,
    Invalid,
    InvalidInput,
    NotFound,
)
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import MUTATING_WEBHOOKS, SECRETS
from fluxqueue.process import metrics
from fluxqueue.process.certs.rotation import (
    HeldCertificates,
    Lives,
    plan,
    read_bundle,
    read_held,
    to_data,
)
from fluxqueue.process.endpoint import Heartbeats
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)


ROUND_S = 5.0
SETTLE_S = 2.0
"""Pause (seconds) after the caBundle has changed.

API servers read it a moment after it is written."""

STEPS_MAX = 6
LOOP = "certificates"
PATIENCE_S = 900.0
"""Longest time (seconds) of a round, with the time-outs and retries of several requests."""


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The Secret, the webhook configuration, and the hosts for which the certificate is valid."""

    namespace: str
    secret: str
    configuration: str
    hosts: Sequence[str]


class CertificateKeeper:
    """Makes, repairs and renews certificates: ``run`` repeatedly, or ``keep`` once."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        names: CertificateNames,
        lives: Lives | None = None,
        *,
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self._client, self._clock, self._names = client, clock, names
        self._lives = lives or Lives()
        self._heartbeats = heartbeats or Heartbeats()
        self._told = ""

    async def run(self) -> None:
        """Keep everything correct until cancelled."""
        try:
            while True:
                self._heartbeats.beat(LOOP, within_s=PATIENCE_S)
                try:
                    await self.keep()
                    self._told = ""
                except FluxQueueError as error:
                    self._tell(error)
                except Exception:
                    logger.exception("certificates not kept; tried again")
                await self._clock.sleep(ROUND_S)
        finally:
            self._heartbeats.stop(LOOP)

    def _tell(self, error: FluxQueueError) -> None:
        """Log an error once, so that a permanent error does not fill the log."""
        level = logging.DEBUG if str(error) == self._told else logging.ERROR
        if isinstance(error, ApiUnavailable | Conflict | Invalid):
            level = logging.INFO  # the next round reads again
        logger.log(
            level,
            "certificates not kept; tried again",
            extra={"action": "certificates", "error": str(error)},
        )
        self._told = str(error)

    async def keep(self) -> None:
        """Take steps until nothing is left to do.

        Raises
        ------
        InvalidInput
            The Secret holds data that are not ours.
        Conflict, Invalid
            Another process wrote at the same time. The next round reads again.
        ApiUnavailable, ApiError
            The API server cannot be reached or refuses.
        """
        for _ in range(STEPS_MAX):
            if not await self._step():
                return

    async def _step(self) -> bool:
        """Read, compare, and write each object at most once. Return whether it wrote anything."""
        configuration = await self._find(MUTATING_WEBHOOKS, None, self._names.configuration)
        if configuration is None:
            return False
        secret = await self._find(SECRETS, self._names.namespace, self._names.secret)
        held = read_held(self._own_data(secret))
        wanted = plan(
            held,
            _trusted_by_all(configuration),
            self._names.hosts,
            now=datetime.fromtimestamp(self._clock.now_s(), tz=UTC),
            lives=self._lives,
        )
        if wanted is not held or secret is None or not _is_marked(secret):
            await self._store(secret, wanted)
        _show(wanted)
        has_changed = await self._tell_callers(configuration, wanted.bundle_pem)
        if has_changed and wanted.serving is not None:
            await self._clock.sleep(SETTLE_S)
        return has_changed or wanted != held

    async def _find(self, resource: Any, namespace: str | None, name: str) -> Object | None:
        try:
            return await self._client.get(resource, namespace, name)
        except NotFound:
            return None

    def _own_data(self, secret: Object | None) -> dict[str, bytes]:
        data = (secret or {}).get("data") or {}
        if secret is not None and data and not _is_marked(secret):
            raise InvalidInput(
                "holds data that fluxqueue did not make; it is left alone",
                where=f"Secret {self._names.namespace}/{self._names.secret}",
                hint="name another Secret in FLUXQUEUE_CERT_SECRET, delete this one, or unset "
                "FLUXQUEUE_CERT_SECRET where certificates come from elsewhere",
            )
        return {key: _decode(value) for key, value in data.items()}

    async def _store(self, secret: Object | None, wanted: HeldCertificates) -> None:
        names = self._names
        meta = dict((secret or {}).get("metadata") or {"name": names.secret})
        meta["labels"] = {**(meta.get("labels") or {}), labels.CERTIFICATES: labels.SELF_MADE}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            **(secret or {}),
            "metadata": meta,
            "data": {key: _encode(value) for key, value in to_data(wanted).items()},
        }
        if secret is None:
            await self._client.create(SECRETS, names.namespace, body)
        else:
            # With the resourceVersion that was read: a Conflict if another process wrote since.
            await self._client.replace(SECRETS, names.namespace, names.secret, body)
        metrics.CERTIFICATE_CHANGES.labels("secret").inc()
        logger.info(
            "certificates written",
            extra={
                "action": "certificates",
                "secret": f"{names.namespace}/{names.secret}",
                "trusted_cas": len(wanted.trusted),
                "serves": wanted.serving is not None,
            },
        )

    async def _tell_callers(self, configuration: Object, bundle_pem: bytes) -> bool:
        """Set the caBundle of every webhook to the bundle. Return whether that changed anything."""
        bundle = _encode(bundle_pem)
        webhooks = configuration.get("webhooks") or []
        stale = [
            number
            for number, webhook in enumerate(webhooks)
            if webhook["clientConfig"].get("caBundle") != bundle
        ]
        if not stale:
            return False
        version = configuration["metadata"]["resourceVersion"]
        patch = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}]
        patch += [
            {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
            for number in stale
        ]
        name = self._names.configuration
        await self._client.patch(MUTATING_WEBHOOKS, None, name, patch, kind=PatchKind.JSON)
        metrics.CERTIFICATE_CHANGES.labels("ca_bundle").inc()
        logger.info("caBundle written", extra={"action": "certificates", "configuration": name})
        return True


def _is_marked(secret: Object) -> bool:
    marks = secret["metadata"].get("labels") or {}
    return bool(marks.get(labels.CERTIFICATES) == labels.SELF_MADE)


def _trusted_by_all(configuration: Mapping[str, Any]) -> list[x509.Certificate]:
    """Return the CAs that are in the caBundle of every webhook of the configuration."""
    bundles = [
        read_bundle(_decode(webhook["clientConfig"].get("caBundle") or ""))
        for webhook in configuration.get("webhooks") or ()
    ]
    first, *others = bundles or [()]
    return [one for one in first if all(one in other for other in others)]


def _show(held: HeldCertificates) -> None:
    for kind, pair in (("ca", held.ca), ("serving", held.serving)):
        if pair is not None:
            expiry = pair.certificate.not_valid_after_utc.timestamp()
            metrics.CERTIFICATE_EXPIRY.labels(kind).set(expiry)


def _encode(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode(value: str) -> bytes:
    try:
        return base64.b64decode(value)
    except (binascii.Error, ValueError):
        return b""
