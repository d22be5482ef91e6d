"""Programs of pods, run as processes of this machine: no image, no isolation, the user's rights.

``fleet`` starts the command of a pod here if the cluster runs programs (``--run-programs``), and
the pod ends with the exit code, the termination message and the output of its program. A pod
without a command is simulated. The paths of empty volumes and of the termination message stand for
files in a folder of the pod, wherever its command names them.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from localcluster.loops.objects import uid_of
from localcluster.nodes.pod_simulation import PREFIX
from localcluster.obj import Obj

TEXT_ANNOTATION = f"{PREFIX}logs"
"""What the server shows as the log of a pod (``kinds.pod_log``)."""

NOT_STARTED_CODE, LOST_CODE = 127, 137
OUTPUT_MAX = 100_000
"""Characters of its output that a pod keeps, the last ones."""
_MESSAGE_PATH = "/dev/termination-log"
_OF_SHELL = ("HOME", "LANG", "TMPDIR", "USER")

LOGS_EVERY_S = 1.0
Annotate = Callable[[Obj, Mapping[str, str]], Awaitable[None]]
"""Gets a pod, and annotations with what its program has left so far."""


def words_of(pod: Obj) -> list[str]:
    """Return the command of its first container."""
    container = pod["spec"]["containers"][0]
    return [*(container.get("command") or ()), *(container.get("args") or ())]


class HostPrograms:
    """The programs of all pods of a fleet. ``annotate`` is called before, during and after each."""

    def __init__(self, annotate: Annotate) -> None:
        self._annotate = annotate
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._groups: dict[str, int] = {}
        self._asked: set[str] = set()
        self._codes: dict[str, int] = {}

    def start(self, pod: Obj) -> None:
        """Start the program of a pod."""
        uid = uid_of(pod)
        self._codes.pop(uid, None)
        self._tasks[uid] = asyncio.create_task(self._run(pod), name=f"program of {uid}")

    def exit_code(self, uid: str) -> int | None:
        """Return its exit code, None while it runs. One of an earlier process is lost."""
        return self._codes.get(uid, None if uid in self._tasks else LOST_CODE)

    def ask_to_end(self, uid: str) -> None:
        """Send TERM to the program of a pod, once."""
        if uid in self._groups and uid not in self._asked:
            self._asked.add(uid)
            self._signal(uid, signal.SIGTERM)

    def forget(self, uid: str) -> None:
        """Kill the program of a pod that is gone."""
        self._signal(uid, signal.SIGKILL)
        self._codes.pop(uid, None)
        self._asked.discard(uid)

    def _signal(self, uid: str, number: signal.Signals) -> None:
        """Send a signal to a program, if it runs, and to what it has started."""
        if uid in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(self._groups[uid], number)

    async def stop(self) -> None:
        """Kill all programs: the end of a task does."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _run(self, pod: Obj) -> None:
        uid = uid_of(pod)
        try:
            with TemporaryDirectory(prefix="localcluster-pod-") as folder:
                code = await self._process(pod, Path(folder))
                notes = {TEXT_ANNOTATION: _text(Path(folder) / "output")}
                if message := _text(Path(folder) / "message"):
                    notes[f"{PREFIX}message"] = message
            self._codes[uid] = code
        finally:
            del self._tasks[uid]
        await self._annotate(pod, notes)

    async def _process(self, pod: Obj, folder: Path) -> int:
        uid, container = uid_of(pod), pod["spec"]["containers"][0]
        here = _paths(pod, folder)
        given = {one["name"]: _value(pod, one) for one in container.get("env") or ()}
        words = [_moved(_expanded(one, given), here) for one in words_of(pod)]
        kept = {name: os.environ[name] for name in _OF_SHELL if name in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
        env = {**kept, "PATH": path, **{name: _moved(one, here) for name, one in given.items()}}
        place = _working_folder(container, folder)
        with (folder / "output").open("wb") as output:
            try:
                started = await asyncio.create_subprocess_exec(
                    *words, env=env, stdin=asyncio.subprocess.DEVNULL, stdout=output,
                    stderr=output, cwd=place, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                output.write(f"{words[0]}: {error.strerror} on this machine\n".encode())
                return NOT_STARTED_CODE
            self._groups[uid] = started.pid
            try:
                code = await self._wait(pod, started, folder / "output")
            finally:
                self._signal(uid, signal.SIGKILL)  # a shell leaves its children behind
                del self._groups[uid]
        return code if code >= 0 else 128 - code

    async def _wait(self, pod: Obj, started: asyncio.subprocess.Process, output: Path) -> int:
        """Return its exit code. Meanwhile the logs of the pod follow its output."""
        known = None
        while True:
            if (text := _text(output)) != known:
                known = text
                await self._annotate(pod, {TEXT_ANNOTATION: text})
            with suppress(TimeoutError):
                return await asyncio.wait_for(started.wait(), LOGS_EVERY_S)


def _working_folder(container: Obj, folder: Path) -> Path:
    wanted = Path(container.get("workingDir") or folder)
    return wanted if wanted.is_dir() else folder


def _paths(pod: Obj, folder: Path) -> dict[str, str]:
    """Return the files and folders of a pod, by their paths in its container."""
    container = pod["spec"]["containers"][0]
    found = {container.get("terminationMessagePath") or _MESSAGE_PATH: str(folder / "message")}
    empty = {one["name"] for one in pod["spec"].get("volumes") or () if "emptyDir" in one}
    for mount in container.get("volumeMounts") or ():
        if mount["name"] in empty:
            (folder / mount["name"]).mkdir(exist_ok=True)
            found[mount["mountPath"]] = str(folder / mount["name"])
    return found


def _moved(text: str, here: Mapping[str, str]) -> str:
    for path, place in here.items():
        text = text.replace(path, place)
    return text


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Return a word as Kubernetes expands it: ``$(NAME)``, and ``$$`` for a dollar."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda one: env.get(one[1], one[0]) if one[1] else "$", text)


def _value(pod: Obj, variable: Obj) -> str:
    """Return the value of a variable of a container. Of others than fields of the pod: empty."""
    path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: object = pod
    for name in path.split(".") if path else ():
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(variable.get("value", "")) if not path else str(value)


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace")[-OUTPUT_MAX:] if file.exists() else ""
