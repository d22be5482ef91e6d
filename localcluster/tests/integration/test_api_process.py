"""The API server as a process: what a kill leaves behind."""

from __future__ import annotations

import asyncio
import sqlite3
import ssl
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml

from tests.integration.conftest import until
from tests.support.waiting import WAIT_S

MAPS = "/api/v1/namespaces/default/configmaps"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "things.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}


@dataclass
class Running:
    """A server process and a session for it."""

    process: asyncio.subprocess.Process
    session: aiohttp.ClientSession

    async def kill(self) -> None:
        """SIGKILL: no clean-up of any kind."""
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def started(data: Path, kubeconfig: Path) -> AsyncIterator[Running]:
    """``localcluster --api-only`` on a data directory."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "localcluster",
        "--api-only",
        *("--data-dir", str(data), "--kubeconfig-out", str(kubeconfig)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert (await process.stdout.readline()).startswith(b"ready ")
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = b64decode(cluster["certificate-authority-data"]).decode()
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority))
        async with aiohttp.ClientSession(
            cluster["server"],
            connector=connector,
            headers={"authorization": f"Bearer {user['token']}"},
        ) as session:
            yield Running(process, session)
    finally:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(WAIT_S):
                assert await process.wait() == 0, "SIGTERM ends the server cleanly"


def kept_maps(data: Path) -> int:
    """Config maps that are on disk."""
    with closing(sqlite3.connect(data / "objects.sqlite3")) as database:
        query = "SELECT count(*) FROM objects WHERE plural = 'configmaps'"
        return int(database.execute(query).fetchone()[0])


async def established(session: aiohttp.ClientSession, definition: str) -> None:
    """Until the kind is served. A definition is stored before that."""
    async with asyncio.timeout(WAIT_S):
        while True:
            async with session.get(definition) as answer:
                conditions = (await answer.json())["status"]["conditions"] or ()
            if any(c["type"] == "Established" and c["status"] == "True" for c in conditions):
                return
            await asyncio.sleep(0.01)


async def test_a_killed_server_goes_on_where_it_was(tmp_path: Path) -> None:
    """What the journal has at the kill is there. Versions never go back. CRDs are served."""
    data, kubeconfig = tmp_path / "data", tmp_path / "kubeconfig"
    async with started(data, kubeconfig) as first:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        async with first.session.post(path, json=DEFINITION) as answer:
            assert answer.status == 201, await answer.text()
        await established(first.session, f"{path}/{DEFINITION['metadata']['name']}")
        for index in range(50):
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"m{index}"}}
            async with first.session.post(MAPS, json=body) as answer:
                assert answer.status == 201
                last = int((await answer.json())["metadata"]["resourceVersion"])
        await until(lambda: kept_maps(data) == 50, "the journal to have the objects")
        await first.kill()

    async with started(data, tmp_path / "second") as second:
        async with second.session.get(MAPS) as answer:
            listed = await answer.json()
        assert len(listed["items"]) == 50
        assert int(listed["metadata"]["resourceVersion"]) >= last
        thing = {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "a"}}
        async with second.session.post(
            "/apis/example.com/v1/namespaces/default/things", json=thing
        ) as answer:
            assert answer.status == 201, await answer.text()
        watched = {"watch": "1", "resourceVersion": str(last)}
        async with second.session.get(MAPS, params=watched) as answer:
            assert b'"code":410' in await answer.content.readline(), "history does not survive"
    old, new = (yaml.safe_load(p.read_text()) for p in (kubeconfig, tmp_path / "second"))
    assert old["users"] == new["users"], "the old kubeconfig's token still counts"
    authorities = [c["clusters"][0]["cluster"]["certificate-authority-data"] for c in (old, new)]
    assert authorities[0] == authorities[1], "and so does the authority that it names"
