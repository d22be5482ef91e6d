"""The embedded API server: assembly, TLS, start and stop.

``cluster`` (and tests) create it. ``localcluster --api-only`` runs one alone. It listens on
loopback only.
"""

from __future__ import annotations

import asyncio
import base64
import gc
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from aiohttp import web
from trustme import CA

from localcluster.kinds.admission import Admission
from localcluster.kinds.authorizer import AlwaysAllow, Authorizer, Rbac
from localcluster.kinds.builtin import build_registry
from localcluster.kinds.crd import DefinitionController
from localcluster.obj import Obj
from localcluster.server.audit import AuditLog
from localcluster.server.auth import AccountTokens, Authenticator
from localcluster.server.bootstrap import make_first_objects
from localcluster.server.certs import kept_authority, server_context
from localcluster.server.discovery import Discovery
from localcluster.server.documents import DocumentChain, Provider
from localcluster.server.expiry import keep_expiring
from localcluster.server.gate import Gate
from localcluster.server.journal import Journal
from localcluster.server.machinery import Machinery
from localcluster.server.openapi import OpenApi
from localcluster.server.routes import Routes
from localcluster.server.store import Store
from localcluster.whole_file import write_whole

GC_OBJECTS = 50_000
"""New objects between two runs of Python's garbage collector, set for the whole process."""
SHUTDOWN_S = 1.0
"""How long open requests may take after :meth:`ApiServer.stop`."""


@dataclass(frozen=True, slots=True)
class ApiServerConfig:
    """Configuration of the API server.

    ``data_dir`` None keeps everything in memory. ``port`` 0 takes a free one. ``has_rbac`` False
    gives every known user all rights. ``audit_log`` is a file that gets a line for each request.
    ``webhook_certificate`` is a folder with a certificate and its key, for calls of webhooks.
    """

    data_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    admin_token: str = ""
    has_rbac: bool = True
    audit_log: Path | None = None
    webhook_certificate: Path | None = None


@dataclass(slots=True)
class _Running:
    runner: web.ServerRunner
    port: int
    expiry: asyncio.Task[None]


@dataclass(slots=True)
class ApiServer:
    """One API server. Use it as ``async with`` or call :meth:`start` and :meth:`stop`."""

    config: ApiServerConfig = field(default_factory=ApiServerConfig)
    machinery: Machinery = field(init=False)
    authenticator: Authenticator = field(init=False)
    authority: CA = field(init=False)
    _journal: Journal | None = field(default=None, init=False)
    definitions: DefinitionController = field(init=False)
    routes: Routes = field(init=False)
    _audit: AuditLog | None = field(default=None, init=False)
    _running: _Running | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.authenticator = Authenticator(account_uid=self._account_uid)
        store = Store()
        authorizer = _authorizer(store) if self.config.has_rbac else AlwaysAllow()
        registry = build_registry(AccountTokens(self.authenticator), authorizer)
        admission = Admission(registry, authorizer, self.config.webhook_certificate)
        self.machinery = Machinery(store, registry, admission, authorizer)
        self.definitions = DefinitionController(self.machinery.store, registry, self.machinery.now)
        directory = self.config.data_dir
        self.authority = CA() if directory is None else kept_authority(directory)
        self._keep_secrets()
        if self.config.admin_token:
            self.authenticator.admin_token = self.config.admin_token

    def _keep_secrets(self) -> None:
        """Keep secrets in the data directory, so that tokens and kubeconfigs survive a restart."""
        directory, auth = self.config.data_dir, self.authenticator
        if directory is None:
            return
        auth.admin_token = _kept(directory / "admin.token", auth.admin_token)
        auth.signing_key = bytes.fromhex(_kept(directory / "signing.key", auth.signing_key.hex()))

    def _account_uid(self, namespace: str, name: str) -> str | None:
        obj = self.machinery.store.get("", "serviceaccounts", namespace, name)
        return obj["metadata"]["uid"] if obj is not None else None

    # -- start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        """Load stored objects, create what every cluster has, and listen."""
        # Stored objects live long and have no cycles. Frequent scans of them take a quarter of the
        # time.
        if gc.get_threshold()[0] < GC_OBJECTS:
            gc.set_threshold(GC_OBJECTS, 20, 100)
        self._open_journal()
        await make_first_objects(self.machinery)
        self.definitions.start()
        routes = self.routes = self._make_routes()
        server = web.Server(routes.handle, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        context = server_context(self.authority, self.config.host)
        site = web.TCPSite(
            runner, self.config.host, self.config.port, ssl_context=context, backlog=1024
        )
        try:
            await site.start()
        except OSError:  # Usually the port is taken.
            await self._release(runner)
            raise
        port = runner.addresses[0][1]
        expiry = asyncio.get_running_loop().create_task(keep_expiring(self.machinery))
        self._running = _Running(runner, port, expiry)

    def _open_journal(self) -> None:
        if self.config.data_dir is None:
            return
        self._journal = Journal(self.config.data_dir / "objects.sqlite3", self.machinery.store)
        self._journal.load()
        self._journal.start()

    def _make_routes(self) -> Routes:
        path = self.config.audit_log
        self._audit = AuditLog(path) if path is not None else None
        gate = Gate(self.machinery.authorizer, self._audit)
        return Routes(self.machinery, self.authenticator, DocumentChain(self._providers()), gate)

    def _providers(self) -> list[Provider]:
        registry = self.machinery.registry
        discovery = Discovery(registry, lambda: f"{self.config.host}:{self.port}")
        return [discovery, OpenApi(registry)]

    async def stop(self) -> None:
        """End all watches, stop listening, and write what is left to the journal."""
        running, self._running = self._running, None
        if running is None:
            return
        running.expiry.cancel()
        for bucket in self.machinery.store.buckets():
            for watcher in tuple(bucket.watchers):
                watcher.cut()
        await self._release(running.runner)

    async def _release(self, runner: web.ServerRunner) -> None:
        self.definitions.stop()
        if isinstance(self.machinery.admission, Admission):
            await self.machinery.admission.close()
        await runner.cleanup()
        if self._audit is not None:
            self._audit.close()
        if self._journal is not None:
            await self._journal.stop()

    async def __aenter__(self) -> ApiServer:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    # -- connection ------------------------------------------------------------------------------

    @property
    def store(self) -> Store:
        """Return the objects, for readers in the same process."""
        return self.machinery.store

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        if self._running is None:
            raise RuntimeError("the API server is not running; call start() first")
        return self._running.port

    @property
    def url(self) -> str:
        """Return ``https://HOST:PORT``."""
        return f"https://{self.config.host}:{self.port}"

    @property
    def ca_pem(self) -> bytes:
        """Return the authority that signed the server's certificate."""
        return self.authority.cert_pem.bytes()

    @property
    def token(self) -> str:
        """Return the administrator's bearer token."""
        return self.authenticator.admin_token

    def kubeconfig(self) -> Obj:
        """Return a kubeconfig with one context, for the administrator."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "localcluster",
                    "cluster": {
                        "server": self.url,
                        "certificate-authority-data": base64.b64encode(self.ca_pem).decode(),
                    },
                }
            ],
            "users": [{"name": "admin", "user": {"token": self.token}}],
            "contexts": [
                {
                    "name": "localcluster",
                    "context": {
                        "cluster": "localcluster",
                        "user": "admin",
                        "namespace": "default",
                    },
                }
            ],
            "current-context": "localcluster",
        }

    def write_kubeconfig(self, path: Path) -> None:
        """Write :meth:`kubeconfig`, readable by its owner only."""
        write_whole(path, yaml.safe_dump(self.kubeconfig(), sort_keys=False))


def _authorizer(store: Store) -> Authorizer:
    """Return an authorizer that drops its cache when a role or a binding changes."""
    authorizer = Rbac(store)
    store.subscribe(authorizer.note)
    return authorizer


def _kept(path: Path, fresh: str) -> str:
    """Return the text of a private file. A missing file is created with ``fresh``."""
    if path.exists():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, fresh)
    return fresh
