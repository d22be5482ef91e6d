"""Logs of pods over HTTP: whole, followed to the end of a run, by kubectl."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import aiohttp
import pytest

from localcluster.obj import Obj
from tests.integration.conftest import Api, until
from tests.integration.test_kubectl import Kubectl, kubectl
from tests.support.waiting import WAIT_S

__all__ = ["kubectl"]

PODS = "/api/v1/namespaces/default/pods"
BEGUN, DONE = "simulated container main started on n", "simulated container main exited with 0"
STARTED_AT, ENDED_AT = "2030-01-01T00:00:00Z", "2030-01-01T00:01:00Z"
RUNNING = {"running": {"startedAt": STARTED_AT}}
ENDED = {"terminated": {"exitCode": 0, "startedAt": STARTED_AT, "finishedAt": ENDED_AT}}


async def _bound_pod(api: Api, **notes: str) -> None:
    await api.ok("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
    spec = {"nodeName": "n", "containers": [{"name": "main", "image": "a"}]}
    annotations = {f"localcluster/{key}": value for key, value in notes.items()}
    body = {"metadata": {"name": "p", "annotations": annotations}, "spec": spec}
    await api.ok("POST", PODS, body)


async def _tell(api: Api, state: Obj, phase: str = "Running") -> None:
    one = {"name": "main", "state": state, "image": "a", "imageID": "", "ready": False}
    status = {"phase": phase, "containerStatuses": [{**one, "restartCount": 0}]}
    await api.ok("PATCH", f"{PODS}/p/status", {"status": status}, patch="merge")


class _Following:
    """A log that is being read."""

    def __init__(self, api: Api) -> None:
        self.text = ""
        self.task = asyncio.create_task(self._read(api))

    async def _read(self, api: Api) -> None:
        headers = {"authorization": f"Bearer {api.server.token}"}
        timeout = aiohttp.ClientTimeout(total=None)
        url = f"{api.server.url}{PODS}/p/log?follow=true"
        async with api.session.get(url, headers=headers, timeout=timeout) as answer:
            assert (answer.status, answer.content_type) == (200, "text/plain")
            async for chunk in answer.content.iter_any():
                self.text += chunk.decode()

    async def end(self) -> str:
        """All of it, when the server has closed it."""
        async with asyncio.timeout(WAIT_S):
            await self.task
        return self.text


async def test_a_log_is_followed_to_the_end_of_the_run(api: Api) -> None:
    """What is there at once, the rest when it is written. Then the stream ends."""
    await _bound_pod(api)
    refused = await api.call("GET", f"{PODS}/p/log")
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")
    assert refused.body["message"].endswith("is waiting to start: ContainerCreating")
    await _tell(api, RUNNING)
    assert await api.ok("GET", f"{PODS}/p/log") == f"{BEGUN}\n"
    following = _Following(api)
    await until(lambda: following.text == f"{BEGUN}\n", "the first line")
    await api.ok("PATCH", f"{PODS}/p", {"metadata": {"labels": {"a": "b"}}}, patch="merge")
    assert not following.task.done()
    await _tell(api, ENDED, "Succeeded")
    assert await following.end() == f"{BEGUN}\n{DONE}\n"
    assert await api.ok("GET", f"{PODS}/p/log", timestamps="true", tailLines="1") == (
        f"2030-01-01T00:01:00.000000000Z {DONE}\n"
    )
    assert await api.ok("GET", f"{PODS}/p/log", limitBytes="9") == "simulated"


async def test_a_log_that_is_followed_ends_with_its_pod(api: Api) -> None:
    """And with the server: no reader is left behind."""
    await _bound_pod(api, logs="one\ntwo")
    await _tell(api, RUNNING)
    following = _Following(api)
    await until(lambda: following.text == "one\ntwo\n", "the lines of the annotation")
    await api.ok("DELETE", f"{PODS}/p", gracePeriodSeconds="0")
    assert await following.end() == "one\ntwo\n"
    bucket: Any = api.server.store.bucket(("", "pods"))
    await until(lambda: not bucket.watchers, "the reader is gone")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_logs(api: Api, kubectl: Kubectl) -> None:
    """Whole, and followed."""
    await _bound_pod(api)
    await _tell(api, ENDED, "Succeeded")
    for words in (("logs", "p"), ("logs", "-f", "p", "-c", "main", "--tail=5")):
        assert await kubectl(*words) == f"{BEGUN}\n{DONE}\n"
    code, _, err = await kubectl.run("logs", "p", "--previous")
    assert code == 1
    assert 'previous terminated container "main" in pod "p" not found' in err
