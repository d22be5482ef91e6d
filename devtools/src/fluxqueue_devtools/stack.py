"""All parts on this machine: Postgres, cluster, webhook, controller, workers, view server.

``fluxqueue up``, ``fluxqueue demo`` and the end-to-end tests use it. The same parts run on an
embedded or an existing cluster, with an embedded or an existing database.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import ssl
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from fluxqueue.db.database import Database
from fluxqueue.db.leadership import Role, read_roles
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    FluxQueueError,
    InvalidSettings,
    SchemaMismatch,
)
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.installation import (
    forget_view,
    install_definitions,
    install_pod_policies,
    install_policies,
    install_webhook,
    read_user,
    remove_webhook,
    tell_view,
)
from fluxqueue.process.distribution import install_command
from fluxqueue.process.settings import Settings
from fluxqueue.process.whole_file import write_whole
from fluxqueue.workload.labels import OWN_NAMESPACE
from fluxqueue_devtools.localpg.folder_lock import lock_folder
from fluxqueue_devtools.localpg.held_port import LOOPBACK, HeldPort
from fluxqueue_devtools.localpg.postgres import LocalPostgres
from fluxqueue_devtools.shell import write_programs, write_psql
from fluxqueue_devtools.stack_options import StackOptions
from fluxqueue_devtools.supervisor import StackPart, python

if TYPE_CHECKING:
    from fluxqueue.process.certs.folder import CertificateFiles
    from fluxqueue.workload.owner_kinds import OwnerKinds
    from fluxqueue.workload.submitter import Submitters

DATABASE_RETRY_S = 1.0
POSTGRES_RETRY_S = 2.0
ANSWER_TIMEOUT_S = 2.0


class Stack:
    """The running system. ``async with`` starts it in order and stops it in reverse.

    Parameters
    ----------
    on_step : Receives the name of each step of the start.
    """

    def __init__(
        self, options: StackOptions, on_step: Callable[[str], None] = lambda _: None
    ) -> None:
        self.options, self._on_step = options, on_step
        self.parts: dict[str, StackPart] = {}
        self.postgres: LocalPostgres | None = None
        self.view_url = ""
        self._logs = options.data_dir / "logs"
        self._keepers: list[asyncio.Task[None]] = []
        self._ports: list[HeldPort] = []
        self._folder_lock: IO[str] | None = None

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster in use."""
        return self.options.kubeconfig or self.options.data_dir / "kubeconfig"

    @property
    def database_url(self) -> str:
        """The URL of the database in use."""
        if self.options.database_url:
            return self.options.database_url
        assert self.postgres is not None, "the database has been started"
        return self.postgres.url

    def write_programs(self) -> Path:
        """Return a folder with the command line, and with a psql for the database if it is ours."""
        folder = self.options.data_dir.absolute() / "bin"
        write_programs(folder)
        if self.postgres is not None:
            write_psql(folder, self.postgres.binaries.psql, self.postgres.psql_environ)
        return folder

    async def __aenter__(self) -> Self:
        # Before any file is touched: they may be those of a running system.
        self._folder_lock = lock_folder(self.options.data_dir)
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    # --- start ---------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self.options.kubeconfig is not None:
            load_kubeconfig(str(self.options.kubeconfig))  # refuse an unusable kubeconfig at once
        self._on_step("database and cluster")
        cluster = asyncio.create_task(self._start_cluster())
        try:
            await self._start_database()
        except BaseException:
            cluster.cancel()
            await asyncio.wait([cluster])
            raise
        await cluster
        self._on_step("definitions and policies")
        async with self._client() as client:
            await install_definitions(client, OWN_NAMESPACE)
        self._on_step("webhook")
        await self._start_webhook()
        self._on_step("controller, workers and view server")
        await self._start_queue()

    async def _start_database(self) -> None:
        from fluxqueue.db import migrate

        if not self.options.database_url:
            self.postgres = LocalPostgres(self.options.data_dir / "postgres")
            await asyncio.to_thread(self.postgres.start)
            self._keepers.append(asyncio.create_task(self._keep_postgres(self.postgres)))
            # So that `fluxqueue check` and other commands find the database from another shell.
            write_whole(self.options.data_dir / "database-url", self.postgres.socket_url)
        await self._wait_for_database()
        try:
            await asyncio.to_thread(migrate.upgrade, self.database_url, migrate.PRE)
        except SchemaMismatch as error:
            if self.postgres is None:
                raise
            # It is the only way to read what would be lost.
            folder = self.options.data_dir / "postgres"
            print(
                f"not started: {error}\nthe database runs for `fluxqueue db check` and pg_dump."
                f" Ctrl-C stops it. To start anew without its history, remove {folder}",
                file=sys.stderr,
                flush=True,
            )
            await asyncio.Event().wait()

    async def _wait_for_database(self) -> None:
        """Wait as long as it takes, and report it.

        The wait is not in a thread, because Ctrl-C could not end a thread.
        """
        from fluxqueue.db import migrate

        told = ""
        while True:
            try:
                # A timeout of 0 makes one attempt.
                await asyncio.to_thread(migrate.wait_for_database, self.database_url, timeout_s=0)
                return
            except DatabaseUnavailable as error:
                if str(error) != told:
                    told = str(error)
                    print(f"waiting for the database: {told}", file=sys.stderr, flush=True)
            await asyncio.sleep(DATABASE_RETRY_S)

    async def _keep_postgres(self, postgres: LocalPostgres) -> None:
        """Restart the server when it crashes, as a StatefulSet does."""
        while True:
            if not await asyncio.to_thread(postgres.wait, 0.2):
                continue
            try:
                await asyncio.to_thread(postgres.start)
            except (FluxQueueError, OSError) as error:  # also a full disk
                print(f"Postgres does not start, trying again: {error}", file=sys.stderr)
                await asyncio.sleep(POSTGRES_RETRY_S)

    async def _start_cluster(self) -> None:
        if self.options.kubeconfig is not None:
            return
        _require_localcluster()
        _ensure_certificates(self._api_server_certs, ["kube-apiserver"])
        shape, folder = self.options.shape, self.options.data_dir / "cluster"
        part = self._part(
            "cluster",
            python("localcluster", "--data-dir", str(folder)),
            "--kubeconfig-out",
            str(self.kubeconfig),
            "--port",
            str(self._hold_port("cluster-port")),
            "--nodes",
            str(shape.nodes),
            "--cpu",
            shape.cpu,
            "--memory",
            shape.memory,
            "--gpus",
            str(shape.gpus),
            "--webhook-certificate",
            str(self._api_server_certs),
            *self.options.cluster_arguments,
        )
        self.kubeconfig.unlink(missing_ok=True)
        await part.start()
        await part.wait_ready(self._is_cluster_ready)

    async def _is_cluster_ready(self) -> bool:
        if not self.kubeconfig.is_file():
            return False
        try:
            async with self._client() as client:
                await client.get_text("/readyz", timeout_s=2)
        except (ApiError, ApiUnavailable):
            return False
        return True

    def _client(self) -> KubeClient:
        return KubeClient(load_kubeconfig(str(self.kubeconfig)))

    async def _start_webhook(self) -> None:
        from fluxqueue.kube.webhook_configuration import WebhookConfiguration, WebhookEndpoint
        from fluxqueue.process.shared_key import ensure_key
        from fluxqueue.workload.aliases import parse_aliases
        from fluxqueue.workload.owner_kind_settings import parse_owner_kinds

        settings = self._settings(self.options.environ)
        owner_kinds = parse_owner_kinds(settings.owner_kinds)
        shared, own = await self._read_users()
        submitters = await self._guard_submitters({shared, *own}, settings, owner_kinds)
        host = self.options.webhook_host
        ensure_key(self._placement_key)
        folder = self.options.data_dir / "certs"
        names = dict.fromkeys((host, "localhost", LOOPBACK))
        files = _ensure_certificates(folder, list(names))
        port = self._hold_port("webhook-port")
        part = self._part(
            "webhook",
            python("fluxqueue_webhook", "--cert-dir", str(folder)),
            "--host",
            LOOPBACK if host == LOOPBACK else "0.0.0.0",  # noqa: S104  the user asked for this host
            "--port",
            str(port),
            f"--controllers={','.join(sorted(submitters.controllers))}",
            f"--submitter-accounts={','.join(sorted(submitters.accounts))}",
            f"--submitter-annotation={submitters.annotation}",
            f"--shared-user={shared}",
            f"--aliases={settings.aliases}",
            f"--queue-names={settings.queue_names}",
            f"--gated-namespaces={settings.gated_namespaces}",
            f"--gated-queues={settings.gated_queues}",
            f"--kueue-suspension={settings.kueue_suspension}",
            f"--placement-key-file={self._placement_key}",
            *(f"--own-user={user}" for user in sorted(own)),
            # An existing cluster may have no certificate for webhooks.
            *(
                [f"--client-ca={self._api_server_certs / 'ca.crt'}"]
                if self.options.kubeconfig is None
                else []
            ),
            environ=self.options.environ,
        )
        await part.start()
        authority = files.ca.read_bytes()
        await part.wait_ready(lambda: _answers_as(authority, port))
        configuration = WebhookConfiguration(
            WebhookEndpoint(url=f"https://{host}:{port}"),
            authority,
            # Not the account that parts share with the user: the webhook tells these apart.
            own_users=sorted(own),
            owner_kinds=owner_kinds,
            submitters=submitters,
            aliases=parse_aliases(settings.aliases, settings.queue_names),
        ).build()
        async with self._client() as client:
            await install_webhook(client, configuration)

    @property
    def _api_server_certs(self) -> Path:
        """Return the folder of the certificate that the embedded API server shows to webhooks."""
        return self.options.data_dir / "api-server-certs"

    @property
    def _placement_key(self) -> Path:
        """Return the file with the key that workers and webhook share."""
        return self.options.data_dir / "placement-key"

    async def _read_users(self) -> tuple[str, set[str]]:
        """Return the user's own account, and the accounts that parts have instead."""
        # The view server writes nothing, so its account gets no rights of ours.
        parts = {k: v for k, v in self.options.kubeconfigs.items() if k != "view"}
        users = []
        for path in (self.kubeconfig, *parts.values()):
            async with KubeClient(load_kubeconfig(str(path))) as client:
                users.append(await read_user(client))
        return users[0], set(users[1:]) - {users[0]}

    async def _guard_submitters(
        self, users: set[str], settings: Settings, owner_kinds: OwnerKinds
    ) -> Submitters:
        """Install the policies. Return the accounts that may name a submitter if these hold.

        ``users`` are the accounts of our parts. The policies refuse all others.
        """
        from fluxqueue.kube.admission_policies import build_policies
        from fluxqueue.workload.submitter import read_submitters

        submitters = read_submitters(settings)
        policies = build_policies(sorted(users), submitters=submitters, owner_kinds=owner_kinds)
        async with self._client() as client:
            is_guarded = await install_policies(client, policies)
            await install_pod_policies(client, drops_managed_fields=settings.drops_managed_fields)
        return submitters if is_guarded else replace(submitters, controllers=frozenset())

    async def _start_queue(self) -> None:
        environ = self._environ()
        parts = [
            self._queue_part("controller", number, self.options.controllers, environ)
            for number in range(self.options.controllers)
        ]
        parts += [
            self._queue_part("worker", number, 0, environ) for number in range(self.options.workers)
        ]
        view = asyncio.create_task(self.start_view()) if self.options.has_view else None
        async with Database(self._settings(environ), role="up") as database:
            before = await read_roles(database)
            for part in parts:
                await part.start()
            await parts[0].wait_ready(lambda: _is_led(database, before))
        if view is not None:
            await view

    async def start_view(self, host: str = LOOPBACK) -> None:
        """Start the view server on ``host``, and publish its address for command lines."""
        folder = self.options.data_dir / "certs"  # the webhook's, valid for this machine
        port = self._hold_port("view-port")
        command = python("fluxqueue", "view", "--cert-dir", str(folder), "--host", host)
        environ = self._own_kubeconfig("view", self._environ())
        part = self._part("view", command, "--port", str(port), environ=environ)
        await part.start()
        authority = (folder / "ca.crt").read_bytes()
        await part.wait_ready(lambda: _answers_as(authority, port))
        self.view_url = f"https://{LOOPBACK}:{port}"
        async with self._client() as client:
            await tell_view(client, self.view_url, authority.decode())

    def _environ(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url,
            "KUBECONFIG": str(self.kubeconfig.absolute()),
            # Several processes on one machine cannot share a port.
            "FLUXQUEUE_HTTP_PORT": "0",
            "FLUXQUEUE_PLACEMENT_KEY_FILE": str(self._placement_key.absolute()),
            **self.options.environ,
        }

    def _own_kubeconfig(self, kind: str, environ: dict[str, str]) -> dict[str, str]:
        """Return the environment of a part that may have its own account."""
        own = self.options.kubeconfigs.get(kind)
        return {**environ, **({"KUBECONFIG": str(own.absolute())} if own is not None else {})}

    def _queue_part(self, kind: str, number: int, of: int, environ: dict[str, str]) -> StackPart:
        """Return a controller or worker. A single controller needs no number in its name."""
        name = kind if of == 1 else f"{kind}-{number}"
        # A process with a fixed name takes its Lease back at once after a crash.
        command = python("fluxqueue", kind, "--identity", name)
        return self._part(name, command, environ=self._own_kubeconfig(kind, environ))

    def _hold_port(self, name: str) -> int:
        """Return a port for a part that may restart, the port of the previous run if possible."""
        remembered = self.options.data_dir / name
        wanted = int(remembered.read_text()) if remembered.is_file() else 0
        held = HeldPort(wanted)
        self._ports.append(held)
        write_whole(remembered, str(held.port))
        return held.port

    def _settings(self, environ: dict[str, str]) -> Settings:
        return Settings.from_env({**os.environ, **environ})

    def _part(
        self,
        name: str,
        command: list[str],
        *arguments: str,
        environ: dict[str, str] | None = None,
    ) -> StackPart:
        part = StackPart(
            name=name,
            command=[*command, *arguments],
            log=self._logs / f"{name}.log",
            environ=environ or {},
        )
        self.parts[name] = part
        return part

    # --- stop ----------------------------------------------------------------------------------

    async def _stop(self) -> None:
        if self.options.kubeconfig is not None and "webhook" in self.parts:
            await self._leave_cluster()
        cluster = self.parts.pop("cluster", None)
        await asyncio.gather(*(part.stop() for part in self.parts.values()))
        if cluster is not None:
            await cluster.stop()
        for held in self._ports:
            held.release()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        if self.postgres is not None:
            await asyncio.to_thread(self.postgres.stop)
        if self._folder_lock is not None:
            self._folder_lock.close()

    async def _leave_cluster(self) -> None:
        """Remove the webhook and the view's address: an existing cluster must not call them."""
        from fluxqueue.kube.webhook_configuration import NAME

        try:
            async with self._client() as client:
                await remove_webhook(client, NAME)
                if self.view_url:
                    await forget_view(client)
        except (ApiError, ApiUnavailable) as error:
            print(f"the webhook configuration {NAME} could not be removed: {error}")


def _ensure_certificates(folder: Path, names: list[str]) -> CertificateFiles:
    from fluxqueue.process.certs.folder import ensure

    return ensure(folder, names, now=datetime.now(tz=UTC))


def _require_localcluster() -> None:
    """Raise ``InvalidSettings`` if the embedded cluster is not installed."""
    found = importlib.util.find_spec("localcluster")
    if found is None or found.origin is None:  # a plain folder of that name is not the package
        raise InvalidSettings(
            "the embedded cluster is not installed",
            hint=f"{install_command('embedded')}, or give --kubeconfig of a running cluster",
        )


async def _is_led(database: Database, before: dict[str, Role]) -> bool:
    """Return whether a controller has a new term, and a worker holds the matcher's role."""
    try:
        now = await read_roles(database)
    except DatabaseUnavailable:
        return False
    old = before["controller"].term if "controller" in before else 0
    controller, matcher = now.get("controller"), now.get("matcher")
    return controller is not None and controller.term > old and bool(matcher and matcher.is_held)


async def _answers_as(authority_pem: bytes, port: int) -> bool:
    """Return whether the server on ``port`` shows our certificate.

    Any other server would accept a connection, too.
    """
    context = ssl.create_default_context(cadata=authority_pem.decode())
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            _, writer = await asyncio.open_connection(LOOPBACK, port, ssl=context)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
