"""The pods of a script over several nodes, as processes of this machine that meet on loopback.

Each runs the command of its container, with a folder of its own for what the pod has at RUN.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

from fluxqueue.client.batch.script_request import ScriptRequest
from tests.support.batch_scripts import command, environment

BUSYBOX = shutil.which("busybox")
SHELLS = [one for one in ("dash", "bash", "busybox") if shutil.which(one)]
WITHIN_S = 240.0


class ScriptPods:
    """The pods of ``request``. The first one begins when the others have been started.

    ``shell`` runs the script and srun. ``late``: indexes of pods that a test starts itself.
    """

    def __init__(
        self, request: ScriptRequest, folder: Path, shell: str = "dash", late: tuple[int, ...] = ()
    ) -> None:
        self._request, self._folder, self._shell = request, folder, shell
        (folder / "token").write_text("secret")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.pods: dict[int, subprocess.Popen[str]] = {}
        for index in reversed(range(request.layout.pods)):
            if index not in late:
                self.start(index)

    def start(self, index: int, **more: str) -> None:
        """Start a pod. ``more``: variables of it."""
        run = self._folder / str(index)
        run.mkdir()
        assert BUSYBOX
        # The init container brings it.
        (run / "busybox").symlink_to(BUSYBOX)
        words = command(self._request, run, "", "")
        shell = f"{shutil.which(self._shell)}{' sh' if self._shell == 'busybox' else ''}"
        words[2] = re.sub(r"#!/bin/sh(?=\n# srun)", f"#!{shell}", words[2])
        own = {
            "JOB_COMPLETION_INDEX": str(index),
            "FLUXQUEUE_PORT": str(self.port),
            "FLUXQUEUE_FIRST": "127.0.0.1",
            "FLUXQUEUE_TOKEN": str(self._folder / "token"),
        }
        self.pods[index] = subprocess.Popen(
            words, env=environment(self._request, run, **own | more), text=True, cwd=self._folder,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip

    def file(self, index: int, name: str) -> Path:
        """The path of a file of a pod's folder."""
        return self._folder / str(index) / name

    def lines(self) -> list[str]:
        """What the script has printed, when it has ended."""
        self.output, self.errors = self.pods[0].communicate(timeout=WITHIN_S)
        return self.output.splitlines()

    def codes(self) -> list[int]:
        """The exit codes of all pods, in order, when they have ended."""
        return [self.pods[one].wait(timeout=WITHIN_S) for one in sorted(self.pods)]

    def kill(self, index: int) -> None:
        """End a pod with all its processes at once, as a lost node does."""
        for pid in {self.pods[index].pid, *self._of_pod(index)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _of_pod(self, index: int) -> set[int]:
        """The processes of a pod: those with its folder in their environment."""
        own = f"FLUXQUEUE_RUN={self._folder / str(index)}\0".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and own in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for index, pod in self.pods.items():
            self.kill(index)
            pod.communicate()
