"""A real Kubernetes control plane on loopback, from the programs in ``$KUBEBUILDER_ASSETS``.

Used by tests marked ``real_cluster`` and by hand (``python -m tests.support.control_plane
--kubeconfig-out F``). Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler with
their default feature gates and admission plugins, RBAC on, anonymous access off. There are no
kubelets: a test with running pods brings node agents. It must not change the programs' defaults
beyond what a single machine without root needs, because it is the measure of everything else.

The servers listen on random ports of 127.0.0.1, write into a temporary folder only, and die with
this process however it ends.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fluxqueue.kube.config import ClusterConfig
from fluxqueue_devtools.localpg.held_port import HeldPort
from tests.support.control_plane_keys import write_certificates, write_private
from tests.support.kubernetes_minors import ALWAYS, Feature, Minor, features_of

ASSETS_ENV = "KUBEBUILDER_ASSETS"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
GATES_ENV = "FLUXQUEUE_E2E_GATES"
"""``groups``: each control plane has Kubernetes' own groups on, where a test does not say."""
HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0  # two busy cores need a minute. A healthy machine six seconds
STOP_TIMEOUT_S = 15.0
NODE_GRACE_S = 50
_POLL_S = 0.1
_LOG_TAIL_CHARS = 3000
_USERS = ("admin", "system:kube-controller-manager", "system:kube-scheduler")
_GROUPS = {"admin": "system:masters"}

# Runs between fork and exec in an interpreter of its own, because a ``preexec_fn`` can deadlock in
# a parent with threads. SIGKILL: the data are worthless by then, and an API server that is asked
# politely after etcd is gone waits a minute for it.
_TIED = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class ControlPlaneUnavailable(RuntimeError):
    """The programs are absent, or one of them did not start. The message ends with its log."""


def missing_reason(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why no control plane can be started here, as a text for ``pytest.skip``. None if one can."""
    folder = environ.get(ASSETS_ENV, "")
    if not folder:
        return f"{ASSETS_ENV} is not set: it names the folder with {', '.join(PROGRAMS)}"
    absent = [name for name in PROGRAMS if not os.access(Path(folder) / name, os.X_OK)]
    if absent:
        return f"{ASSETS_ENV}={folder} lacks {', '.join(absent)}"
    return None


class Server:
    """One running program, its log file, and the thread that started it and waits for it.

    The thread matters: the signal by which a child dies with its parent is sent when the *thread*
    that forked it ends, and threads of a pool may end early.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.name = Path(command[0]).name
        self.log_file = folder / f"{self.name}.log"
        self.has_ended = threading.Event()
        self._command = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *command]
        self._folder = folder
        self._is_started = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._run, name=self.name, daemon=True).start()
        self._is_started.wait()

    def _run(self) -> None:
        try:
            with self.log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._folder,
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C is ours to order: clients first, etcd last
                )
        finally:
            self._is_started.set()
            if self._process is None:
                self.has_ended.set()
        self._process.wait()
        self.has_ended.set()

    @property
    def pid(self) -> int | None:
        """Process id, also after the end. None if it could not be started."""
        return self._process.pid if self._process is not None else None

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send ``number``, then SIGKILL if that does not help within ``STOP_TIMEOUT_S``."""
        for step in (number, signal.SIGKILL):
            if not self.has_ended.is_set() and self._process is not None:
                self._process.send_signal(step)
            if self.has_ended.wait(STOP_TIMEOUT_S):
                return

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log_file.read_text(errors="replace")[-_LOG_TAIL_CHARS:]


def _environment() -> dict[str, str]:
    """Our environment without proxies, which would swallow the traffic between the servers."""
    return {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


@dataclass(frozen=True, slots=True)
class Options:
    """What a test may want different.

    ``node_grace_s``: seconds without a renewed Lease until a node counts as not ready (the real
    default is 50). ``feature``: what is turned on beyond the programs' defaults. None: what
    ``GATES_ENV`` says. ``extra_args``: further flags per program, after ours.
    """

    node_grace_s: int = NODE_GRACE_S
    feature: Feature | None = None
    extra_args: Mapping[str, Sequence[str]] | None = None


def features_here() -> Minor:
    """Return the features of the programs in ``$KUBEBUILDER_ASSETS``. An unknown minor raises."""
    return features_of(Path(os.environ[ASSETS_ENV]))


def _feature_asked_for() -> Feature:
    """Return what ``GATES_ENV`` turns on. Programs without the feature run with their defaults."""
    said = os.environ.get(GATES_ENV, "")
    assert said in {"", "groups"}, f"{GATES_ENV}={said} is not valid: it is groups, or unset"
    return (features_here().groups if said else None) or ALWAYS


class ControlPlane:
    """A control plane as a context manager, sync or async. Starting takes 5 to 60 seconds.

    Parameters: ``assets`` is the folder of the programs (default: ``$KUBEBUILDER_ASSETS``).
    Raises ControlPlaneUnavailable on start. All attributes below are known after the start.
    """

    def __init__(self, assets: Path | None = None, *, options: Options | None = None) -> None:
        self._assets = assets
        self._options = options or Options()
        self._servers: dict[str, Server] = {}
        self._commands: dict[str, list[str]] = {}
        self._folder: Path | None = None
        self._ports: list[HeldPort] = []
        self.url = ""
        self.ca_pem = ""
        self._tokens = {user: secrets.token_urlsafe(24) for user in _USERS}

    # -- life ----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all four programs and return when pods can be created and get scheduled."""
        binaries = self._find_programs()
        self._folder = Path(tempfile.mkdtemp(prefix="control-plane-"))
        try:
            self._prepare(binaries)
            for name in PROGRAMS:
                self._launch(name)
            self._wait_for("the default ServiceAccount", self._has_default_service_account)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the programs, clients first and etcd last, and delete the folder."""
        for name in reversed(PROGRAMS):
            if name in self._servers:
                self._servers.pop(name).end()
        for held in self._ports:
            held.release()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def restart(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End one program with ``number`` and start it again on the same port, data kept."""
        self._servers.pop(name).end(number)
        self._launch(name)

    def close_gates(self) -> None:
        """Start all programs but etcd again without their feature, data kept: as a downgrade."""
        without = self._options.feature or _feature_asked_for()
        for name in PROGRAMS[1:]:
            flags = without.flags().get(name, ())
            self._commands[name] = [one for one in self._commands[name] if one not in flags]
            self.restart(name)

    def pause(self, name: str) -> None:
        """Freeze one program (SIGSTOP): it keeps its connections and answers nothing."""
        self._signal(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Undo ``pause``."""
        self._signal(name, signal.SIGCONT)

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- how to reach it -------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The temporary folder: logs, certificates, kubeconfigs."""
        assert self._folder is not None, "start() comes first"
        return self._folder

    @property
    def admin_token(self) -> str:
        """Bearer token of a member of system:masters."""
        return self._tokens["admin"]

    @property
    def config(self) -> ClusterConfig:
        """Admin access for ``KubeClient``."""
        return self.config_with(self.admin_token)

    def config_with(self, token: str | None) -> ClusterConfig:
        """Access by another token, such as one from ``serviceaccounts/NAME/token``."""
        return ClusterConfig(server=self.url, ca_pem=self.ca_pem, token=token)

    @property
    def kubeconfig_path(self) -> Path:
        """A kubeconfig file with admin access."""
        return self.folder / "admin.kubeconfig"

    def kubeconfig(self, token: str) -> dict[str, Any]:
        """A kubeconfig as data."""
        ca_data = base64.b64encode(self.ca_pem.encode()).decode()
        name = "control-plane"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": self.url, "certificate-authority-data": ca_data},
                }
            ],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        }

    def pid(self, name: str) -> int | None:
        """Process id of one of ``PROGRAMS``."""
        return self._servers[name].pid

    def log(self, name: str) -> str:
        """The end of the log of one of ``PROGRAMS``."""
        return self._servers[name].log_tail()

    # -- inside ----------------------------------------------------------------------------------

    def _find_programs(self) -> dict[str, str]:
        environ = {ASSETS_ENV: str(self._assets)} if self._assets else os.environ
        if reason := missing_reason(environ):
            raise ControlPlaneUnavailable(reason)
        folder = Path(environ[ASSETS_ENV]).resolve()
        return {name: str(folder / name) for name in PROGRAMS}

    def _prepare(self, binaries: Mapping[str, str]) -> None:
        """Write keys, certificates, tokens and kubeconfigs. Decide ports and command lines."""
        self._ports = [HeldPort() for _ in range(3)]
        etcd_port, peer_port, api_port = (held.port for held in self._ports)
        self.url = f"https://{HOST}:{api_port}"
        self.ca_pem = write_certificates(self.folder, HOST)
        rows = [
            f"{token},{user},{user}-uid" + (f',"{_GROUPS[user]}"' if user in _GROUPS else "")
            for user, token in self._tokens.items()
        ]
        write_private(self.folder / "tokens.csv", "\n".join(rows))
        for user, token in self._tokens.items():
            path = self.folder / f"{user.rpartition(':')[2]}.kubeconfig"
            write_private(path, json.dumps(self.kubeconfig(token)))
        flags = {
            "etcd": _etcd_flags(self.folder, etcd_port, peer_port),
            "kube-apiserver": _api_server_flags(self.folder, api_port, etcd_port),
            "kube-controller-manager": _controller_manager_flags(self.folder, self._options),
            "kube-scheduler": _scheduler_flags(self.folder),
        }
        extra = self._options.extra_args or {}
        feature = self._options.feature or _feature_asked_for()
        for name in PROGRAMS:
            more = (*feature.flags().get(name, ()), *extra.get(name, ()))
            self._commands[name] = [binaries[name], *flags[name], *more]

    def _launch(self, name: str) -> None:
        self._servers[name] = Server(self._commands[name], self.folder)
        if name == "kube-apiserver":
            self._wait_for("the API server", self._is_api_ready)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._servers[name].pid
        assert pid is not None
        os.kill(pid, number)

    def _wait_for(self, what: str, is_true: Any) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_true():
            for server in self._servers.values():
                if server.has_ended.is_set():
                    raise ControlPlaneUnavailable(
                        f"{server.name} has ended; its log ends with:\n{server.log_tail()}"
                    )
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {s.name}\n{s.log_tail()}" for s in self._servers.values())
                raise ControlPlaneUnavailable(
                    f"{what} is not there after {START_TIMEOUT_S}s\n{logs}"
                )
            time.sleep(_POLL_S)

    def _is_api_ready(self) -> bool:
        return self._status_of("/readyz") == 200

    def _has_default_service_account(self) -> bool:
        """The last thing the controller manager makes before a pod can be created."""
        return self._status_of("/api/v1/namespaces/default/serviceaccounts/default") == 200

    def _status_of(self, path: str) -> int:
        """HTTP status of a GET as admin. 0 while no server listens."""
        address = self.url.removeprefix("https://")
        context = ssl.create_default_context(cadata=self.ca_pem)
        connection = http.client.HTTPSConnection(address, context=context, timeout=5)
        try:
            headers = {"Authorization": f"Bearer {self.admin_token}"}
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


# -- command lines -------------------------------------------------------------------------------


def _etcd_flags(folder: Path, port: int, peer_port: int) -> list[str]:
    peer = f"http://{HOST}:{peer_port}"
    client = f"http://{HOST}:{port}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync=true",  # the data live as long as the test
    ]


def _api_server_flags(folder: Path, port: int, etcd_port: int) -> list[str]:
    return [
        f"--etcd-servers=http://{HOST}:{etcd_port}",
        f"--bind-address={HOST}",
        f"--advertise-address={HOST}",
        "--endpoint-reconciler-type=none",  # a loopback address cannot be an endpoint
        f"--secure-port={port}",
        f"--tls-cert-file={folder / 'server.pem'}",
        f"--tls-private-key-file={folder / 'server-key.pem'}",
        f"--service-account-key-file={folder / 'service-account-public.pem'}",
        f"--service-account-signing-key-file={folder / 'service-account.pem'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        f"--cert-dir={folder}",
    ]


def _controller_manager_flags(folder: Path, options: Options) -> list[str]:
    return [
        f"--kubeconfig={folder / 'kube-controller-manager.kubeconfig'}",
        "--leader-elect=false",
        "--secure-port=0",  # nothing to serve: its health shows in its work
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={folder / 'service-account.pem'}",
        f"--root-ca-file={folder / 'ca.pem'}",
        f"--node-monitor-grace-period={options.node_grace_s}s",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        f"--cert-dir={folder}",
    ]


def _scheduler_flags(folder: Path) -> list[str]:
    return [
        f"--kubeconfig={folder / 'kube-scheduler.kubeconfig'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ]


# -- by hand -------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run a control plane until SIGINT or SIGTERM. Prints ``ready`` when it can be used."""
    parser = argparse.ArgumentParser(description="a real Kubernetes control plane on loopback")
    parser.add_argument("--kubeconfig-out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--node-grace-s", type=int, default=NODE_GRACE_S, metavar="SECONDS")
    args = parser.parse_args(argv)
    is_over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: is_over.set())
    try:
        with ControlPlane(options=Options(node_grace_s=args.node_grace_s)) as control_plane:
            text = control_plane.kubeconfig_path.read_text(encoding="utf-8")
            write_private(args.kubeconfig_out, text)
            print(f"ready {control_plane.url} logs {control_plane.folder}", flush=True)
            is_over.wait()
    except ControlPlaneUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
