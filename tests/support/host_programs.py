"""Pods that run programs for real, as processes of this machine, on a cluster that simulates pods.

A pod with the image ``HOST`` runs its command here. Its node keeps it running meanwhile, and ends
it with the program's exit code, termination message and output.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.client.call_runner import MESSAGE_VARIABLE
from fluxqueue.client.pod_logs import pod_changes
from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS, SECRETS
from fluxqueue.kube.transport import HttpTransport, Reply
from fluxqueue.workload.labels import COMPLETION_INDEX

HOST = "host"
AT_ONCE = 4
NOTE = "localcluster/"
KEPT = f"{NOTE}never-ends"


def keep_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the nodes run pods of the image until we end them: from their creation on."""
    real = HttpTransport.send

    async def send(
        self: HttpTransport, method: str, target: str, headers: Mapping[str, str],
        body: bytes | None, timeout_s: float,
    ) -> Reply:  # fmt: skip
        if method == "POST" and body and f'"image":"{HOST}"'.encode() in body:
            made = json.loads(body)
            template = made["spec"]["template"]
            notes = template.setdefault("metadata", {}).setdefault("annotations", {})
            notes[KEPT] = "true"
            body = json.dumps(made).encode()
        return await real(self, method, target, headers, body, timeout_s)

    monkeypatch.setattr(HttpTransport, "send", send)


@asynccontextmanager
async def host_programs(
    client: KubeClient, namespace: str, environ: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Run the programs of a namespace, until the end of the block. ``environ`` is theirs, too."""
    task = asyncio.create_task(_run_all(client, namespace, environ or {}))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _run_all(client: KubeClient, namespace: str, more: Mapping[str, str]) -> None:
    begun: dict[str, asyncio.Task[None]] = {}
    slots = asyncio.Semaphore(AT_ONCE)
    try:
        async with aclosing(pod_changes(client, namespace, "")) as changes:
            async for pod, is_gone in changes:
                uid = pod["metadata"]["uid"]
                if is_gone:
                    if (work := begun.pop(uid, None)) is not None:
                        work.cancel()
                elif not _is_ours(pod) or uid in begun:
                    continue
                elif pod["status"].get("phase") == "Running":
                    begun[uid] = asyncio.create_task(_run(client, pod, slots, more))
                elif KEPT not in (pod["metadata"].get("annotations") or {}):
                    await _keep(client, pod)
    finally:
        for one in begun.values():
            one.cancel()
        await asyncio.gather(*begun.values(), return_exceptions=True)


def _is_ours(pod: Mapping[str, Any]) -> bool:
    # A program may give its image a tag.
    return bool(pod["spec"]["containers"][0]["image"].partition(":")[0] == HOST)


async def _keep(client: KubeClient, pod: Mapping[str, Any]) -> None:
    """Keep a pod running that a program without ``keep_running`` has made. It has one second."""
    meta = pod["metadata"]
    with suppress(NotFound):
        await client.patch(
            PODS, meta["namespace"], meta["name"], {"metadata": {"annotations": {KEPT: "true"}}}
        )


async def _run(
    client: KubeClient, pod: Mapping[str, Any], slots: asyncio.Semaphore, more: Mapping[str, str]
) -> None:
    async with slots:
        with tempfile.TemporaryDirectory(prefix="fluxqueue-host-") as folder:
            code = await _process(client, pod, Path(folder), more)
            message, output = (_text(Path(folder) / name) for name in ("message", "output"))
    notes = {
        KEPT: None, f"{NOTE}duration": "0s", f"{NOTE}exit-code": str(code),
        f"{NOTE}message": message or None, f"{NOTE}logs": output or None,
    }  # fmt: skip
    with suppress(NotFound):
        meta = pod["metadata"]
        await client.patch(
            PODS, meta["namespace"], meta["name"], {"metadata": {"annotations": notes}}
        )


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.exists() else ""


async def _connected(client: KubeClient, pod: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """What a pod of a script over several nodes has in its volumes, and where that is."""
    secret = await client.get(SECRETS, pod["metadata"]["namespace"], pod["spec"]["subdomain"])
    (folder / "token").write_bytes(base64.b64decode(secret["data"]["token"]))
    (folder / "busybox").symlink_to(shutil.which("busybox") or "")
    return {"FLUXQUEUE_RUN": str(folder), "FLUXQUEUE_TOKEN": str(folder / "token")}


async def _process(
    client: KubeClient, pod: Mapping[str, Any], folder: Path, more: Mapping[str, str]
) -> int:
    """Run the program, and return its exit code."""
    container = pod["spec"]["containers"][0]
    given = container.get("env") or ()
    environ = {**more, **{one["name"]: one["value"] for one in given if "value" in one}}
    if pod["spec"].get("subdomain"):
        environ |= await _connected(client, pod, folder)
    index = (pod["metadata"].get("annotations") or {}).get(COMPLETION_INDEX)
    environ |= {"JOB_COMPLETION_INDEX": index} if index is not None else {}
    environ[MESSAGE_VARIABLE] = str(folder / "message")
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    words = [word.replace("$$", "$") for word in words]
    if words[:2] == ["python3", "-c"]:
        # A fork of a Python that has started already: a thousand starts would take a minute.
        process = _server().Process(target=run_text, args=(words[2], environ, str(folder)))
        process.start()
        try:
            while process.exitcode is None:
                await asyncio.sleep(0.01)
        finally:
            process.kill()
        return process.exitcode
    with (folder / "output").open("wb") as output:
        started = await asyncio.create_subprocess_exec(
            *words, env=os.environ | environ, stdout=output, stderr=output, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
        try:
            return await started.wait()
        finally:
            # A shell leaves its children behind.
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def _server() -> Any:
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["cloudpickle", "tests.support.host_programs"])
    return server


def run_text(text: str, environ: Mapping[str, str], folder: str) -> None:
    """Run the text of a program as ``python3 -c`` does."""
    os.environ.update(environ)
    with (
        (Path(folder) / "output").open("w", encoding="utf-8") as output,
        redirect_stdout(output),
        redirect_stderr(output if isinstance(output, io.TextIOBase) else sys.stderr),
    ):
        exec(compile(text, "-c", "exec"), {"__name__": "__main__"})  # the program of the pod
