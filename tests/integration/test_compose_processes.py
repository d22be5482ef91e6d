"""docker-compose.yml without Docker: its commands, variables and health checks as processes.

Every service of ours is started in the order of the file from the installed wheel, outside the
source tree, and a Job goes through all of them. What differs from containers is the file system
(folders in place of volumes), the network (ports of loopback in place of names) and that Postgres
is the embedded one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import FLUXJOBS, JOBS
from fluxqueue_devtools.localpg.held_port import HeldPort
from tests.support import compose
from tests.support.e2e.objects import job
from tests.support.typing_verbs import Typist
from tests.support.waiting import eventually
from tests.support.wheel import Installation, clean_environ

pytestmark = [
    pytest.mark.long("all services of docker-compose.yml, from wheels built and installed for it"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

URL_IN_FILE = "postgresql://fluxqueue:fluxqueue@postgres:5432/fluxqueue"
VOLUMES = ("certs", "cluster", "kube")
READY_S = 150.0
END_S = 60.0


@dataclass(slots=True)
class Processes:
    """The services as processes. ``translate`` says what a container's world is here."""

    installation: Installation
    folder: Path
    database_url: str
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ports: dict[str, HeldPort] = field(default_factory=dict)

    def port(self, name: str) -> str:
        """The port of loopback that stands for one of the file's, always the same."""
        if name not in self._ports:
            self._ports[name] = HeldPort()
        return str(self._ports[name].port)

    def translate(self, service: str, text: str) -> str:
        """Put our paths, names and ports in place of the container's. No word is left out."""
        if text == "python":
            return str(self.installation.python)
        stand_ins = {
            URL_IN_FILE: self.database_url,
            "/opt/fluxqueue/bin": str(self.installation.folder / "bin"),
            **{f"/{name}": str(self.folder / name) for name in VOLUMES},
            "//kubernetes": "//127.0.0.1",
            "=kubernetes": "=127.0.0.1",
            "//webhook": "//localhost",
            "6443": self.port("cluster"),
            "8443": self.port("webhook"),
            "8444": self.port("view"),
            "8081": self.port(f"http of {service}"),
        }
        return compose.translated(text, stand_ins)

    def command(self, name: str, words: list[str]) -> list[str]:
        """A command line of a service, translated."""
        return [self.translate(name, word) for word in words]

    def environ(self, name: str, service: compose.Service) -> dict[str, str]:
        """The variables of a service and nothing of this process's that could stand in."""
        own = {k: self.translate(name, v) for k, v in service.get("environment", {}).items()}
        return clean_environ(**own, FLUXQUEUE_HTTP_PORT=self.port(f"http of {name}"))

    def start(self, name: str, service: compose.Service) -> None:
        """Start a service and wait as Compose does: for its end, or for its health."""
        with self.log(name).open("wb") as log:
            self.running[name] = subprocess.Popen(
                self.command(name, compose.command_line(service)),
                cwd=self.folder,
                env=self.environ(name, service),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if service["restart"] == "no":
            code = self.wait_ended(name)
            assert code == 0, f"{name} ended with {code}\n{self.log(name).read_text()}"
        else:
            self.wait_healthy(name, service)

    def wait_ended(self, name: str) -> int:
        """Wait for the end of a service that runs once. Its exit code."""
        try:
            code = self.running[name].wait(READY_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} does not end\n{self.log(name).read_text()}")
        del self.running[name]
        return code

    def wait_healthy(self, name: str, service: compose.Service) -> None:
        """Ask the health check of the file until it is content."""
        kind, *words = service["healthcheck"]["test"]
        assert kind == "CMD"
        deadline_s = time.monotonic() + READY_S
        while complaint := self.ask_health(name, service, words):
            said = f"{complaint}\n{self.log(name).read_text()}"
            assert self.running[name].poll() is None, f"{name} has ended\n{said}"
            assert time.monotonic() < deadline_s, f"{name} is not healthy\n{said}"
            time.sleep(0.5)  # the check is a process of its own: not more often

    def ask_health(self, name: str, service: compose.Service, words: list[str]) -> str:
        """Run the health check once. What it complains of, empty if nothing."""
        done = subprocess.run(
            self.command(name, words),
            cwd=self.folder,
            env=self.environ(name, service),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return (done.stdout or "silent failure") if done.returncode else ""

    def log(self, name: str) -> Path:
        """Where a service's output goes."""
        return self.folder / f"{name}.log"

    def stop(self) -> dict[str, int]:
        """End all as `docker compose down` does. The exit codes by service."""
        codes = {}
        for name, process in reversed(self.running.items()):
            process.send_signal(signal.SIGTERM)
            try:
                codes[name] = process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                codes[name] = process.wait()
        self.running.clear()
        return codes


@pytest.fixture
def processes(installation: Installation, empty_database_url: str) -> Iterator[Processes]:
    """All services of ours up and healthy. Postgres and the folders are there already."""
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="fluxqueue-compose-")))
        for name in VOLUMES:
            (folder / name).mkdir()
        found = Processes(installation, folder, empty_database_url)
        exits.callback(found.stop)
        for name, service in compose.services({"RUN_AS": f"{os.getuid()}:{os.getgid()}"}).items():
            if compose.target_of(service) is not None:
                found.start(name, service)
        yield found


async def test_a_job_goes_through_all_services(processes: Processes) -> None:
    """Admitted, queued, matched, released and finished. Then all end when they are asked to."""
    config = load_kubeconfig(str(processes.folder / "kube" / "config"))
    async with KubeClient(config) as client:
        stored = await client.create(JOBS, "default", job("hello", pods=3, cpu="8"))
        assert stored["spec"]["suspend"] is True, "the webhook was asked"

        async def is_complete() -> bool:
            now = await client.get(JOBS, "default", "hello")
            conditions = now.get("status", {}).get("conditions") or []
            return any(c["type"] == "Complete" and c["status"] == "True" for c in conditions)

        await eventually(is_complete, "the Job completes")
        fluxjob = await client.get(FLUXJOBS, "default", "hello-job")
        assert fluxjob["status"]["nodes"], "it was matched, not merely let go"
        told = await Typist(client, processes.folder / "kube" / "config").type("history", "hello")
        assert "Completed" in told.out, told.err
    assert processes.running.keys() == {"kubernetes", "webhook", "controller", "worker", "view"}
    codes = processes.stop()
    assert codes == dict.fromkeys(codes, 0), {n: processes.log(n).read_text() for n in codes}
