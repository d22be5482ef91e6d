"""A view server over real rows and an embedded API server, and people who ask it.

Tokens are those of service accounts, reviewed by the embedded API server. What their holders may
see stands in a table: that server knows who a user is, and refuses nothing. On a real
one see ``tests/e2e/test_view_rights.py``.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from fluxqueue.clock import Clock, SystemClock
from fluxqueue.db.database import Database
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import SERVICE_ACCOUNTS
from fluxqueue.kube.transport import Reply
from fluxqueue.process.certs.folder import ensure
from fluxqueue.view.http_server import ViewConfig, ViewServer
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload
from tests.support.workers import QUIET

EVERYWHERE = ""


@dataclass
class Answer:
    """What the server said."""

    code: int
    headers: Mapping[str, str]
    body: Any

    @property
    def names(self) -> list[str]:
        """Names of the items of a list."""
        return [one["name"] for one in self.body["items"]]


class RightsByTable(InProcessTransport):
    """To the embedded cluster. SubjectAccessReviews are answered from ``rights``, and counted.

    ``rights``: who -> (resource, namespace), the namespace empty for all of them.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        super().__init__(cluster)
        self.rights: dict[str, set[tuple[str, str]]] = {}
        self.asked: list[str] = []

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Answer a review, or pass it on."""
        kind = target.rpartition("/")[2]
        if kind in {"subjectaccessreviews", "tokenreviews"}:
            self.asked.append(kind)
        if kind == "subjectaccessreviews":
            assert body is not None
            spec = orjson.loads(body)["spec"]
            about = spec["resourceAttributes"]
            may = self.rights.get(spec["user"].rpartition(":")[2], set())
            is_allowed = (about["resource"], about.get("namespace", EVERYWHERE)) in may
            answer = {"status": {"allowed": is_allowed and about["verb"] == "list"}}
            return Reply(201, {}, orjson.dumps(answer))
        return await super().send(method, target, headers, body, timeout_s)


@dataclass
class Viewing:
    """A running server, and the means to ask it as a user."""

    server: ViewServer
    cluster: LocalCluster
    api: RightsByTable
    client: KubeClient
    session: aiohttp.ClientSession
    ca: Path
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def authority(self) -> str:
        """What a client has to trust."""
        return self.ca.read_text()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://127.0.0.1:{self.server.port}"

    async def let(self, name: str, *rights: tuple[str, str]) -> str:
        """A user with these rights. Returns the token."""
        if name not in self.tokens:
            await self.client.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": name}})
            told = await self.client.create(
                SERVICE_ACCOUNTS, "default", {"spec": {}}, name=name, subresource="token"
            )
            self.tokens[name] = told["status"]["token"]
        self.api.rights[name] = set(rights)
        return self.tokens[name]

    async def get(self, path: str, who: str = "admin", **headers: str) -> Answer:
        """Ask for ``/api/v1`` and a path."""
        token = self.tokens.get(who, who)
        given = {"Authorization": f"Bearer {token}", **headers} if who else headers
        async with self.session.get(f"{self.url}/api/v1{path}", headers=given) as told:
            raw = await told.read()
            body = orjson.loads(raw) if raw else None
            return Answer(told.status, told.headers, body)


@asynccontextmanager
async def viewing(
    database_url: str, folder: Path, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[Viewing]:
    """Everything running. ``admin`` may see all."""
    files = ensure(folder / "certs", ["127.0.0.1"], now=datetime.now(tz=UTC))
    context = ssl.create_default_context(cafile=str(files.ca))
    async with LocalCluster(QUIET) as cluster:
        api = RightsByTable(cluster)
        config = ViewConfig(files.folder, host="127.0.0.1", port=0)
        async with (
            DatabaseReader(replace(settings_for(database_url), **settings), role="view") as reader,
            KubeClient(config_of(cluster), transport=api) as client,
            ViewServer(config, reader, client, clock or SystemClock()) as server,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        ):
            made = Viewing(server, cluster, api, client, session, files.ca)
            await made.let("admin", ("fluxjobs", EVERYWHERE), ("nodes", EVERYWHERE))
            yield made


@asynccontextmanager
async def filled(url: str) -> AsyncIterator[Rows]:
    """``runs`` runs, ``next`` and ``last`` wait in two namespaces, ``over`` was cancelled."""
    async with Database(settings_for(url), role="test") as database:
        rows = Rows(database, settings=settings_for(url))
        await rows.add_nodes(*(cpu_node(f"n{n}", 4) for n in (1, 2)))
        await rows.see(workload("over", request(4, cpu=1), user_name="ada"))
        await rows.match()
        await rows.see(workload("over", is_deleting=True))
        await rows.reconcile("over")
        await rows.see(workload("runs", request(8, cpu=1, duration_s=3600), user_name="ada"))
        await rows.match()
        await rows.see(
            workload("next", request(8, cpu=1, duration_s=60), user_name="bob", namespace="other"),
            workload("last", request(cpu=1, duration_s=60), user_name="ada"),
        )
        await rows.match()
        yield rows
