"""What is counted while something runs: processor time, API requests, SQL.

Each meter reads from outside: /proc, the API server's ``/metrics``, Postgres' own log.
"""

from __future__ import annotations

import asyncio
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.processes import tree_cpu_s
from fluxqueue.kube.client import KubeClient
from fluxqueue_devtools.localpg import LocalPostgres

DRIVER = "this benchmark"
QUIET_PER_S = 4
"""Requests a second at and below which nobody works any more: node statuses, tokens, probes."""
QUIET_MAX_S = 60.0
IDLE_CORES = 0.3
"""Of all parts together, at and below which nothing is left of what was done before: an API server
lays out a new definition for many seconds in which it is asked for nothing."""
SQL_REST_S = 1.5
"""Longer than one period of every sweep: what follows a Job belongs to it."""

_REQUEST = re.compile(r"apiserver_request_total\{(?P<labels>[^}]*)\} (?P<number>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_NOT_WORK = frozenset(
    {"leases", "tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews"}
)
_MARK = "sqlmeter"
_LOGGING = {
    "log_statement": "'all'",
    "log_line_prefix": f"'{_MARK}|%a|%v|'",
    "log_parameter_max_length": "0",
}
_LOGGED = re.compile(rf"{_MARK}\|(?P<name>[^|]*)\|(?P<xid>[^|]*)\|LOG:  (?P<text>.*)")
_TEXT = re.compile(r"(?:statement|execute [^:]*): (?P<sql>.*)", re.DOTALL)
_CONTROL = re.compile(r"(BEGIN|COMMIT|ROLLBACK|START TRANSACTION|SAVEPOINT|RELEASE)\b", re.I)
_SPACE = re.compile(r"\s+")

Pids = Mapping[str, Callable[[], int | None]]


def cpu_by_part(pids: Pids) -> dict[str, float]:
    """Seconds of processor time that each part has used, and this process."""
    used = {}
    for name, pid_of in pids.items():
        if (pid := pid_of()) is not None:
            with suppress(FileNotFoundError):
                used[name] = tree_cpu_s(pid)
    own = resource.getrusage(resource.RUSAGE_SELF)
    used[DRIVER] = own.ru_utime + own.ru_stime
    return used


async def requests_so_far(client: KubeClient) -> Counter[str]:
    """Answered requests by ``VERB resource/subresource``. Watches and leases are left out."""
    found: Counter[str] = Counter()
    for match in _REQUEST.finditer(await client.get_text("/metrics", timeout_s=60)):
        labels = dict(_LABEL.findall(match["labels"]))
        what = labels.get("resource", "")
        if labels["verb"] in {"WATCH", "CONNECT"} or not what or what in _NOT_WORK:
            continue
        if labels.get("subresource"):
            what += f"/{labels['subresource']}"
        found[f"{labels['verb']} {what}"] += int(float(match["number"]))
    return found


@dataclass(frozen=True, slots=True)
class MeterReading:
    """What one run used: seconds of processor time by part, requests by kind (None: unknown)."""

    span_s: float
    cpu_s: Mapping[str, float]
    requests: Mapping[str, int] | None


class Meter:
    """Processor time and requests between ``begin`` and ``end``.

    Parameters: ``pids`` are the parts, ``client`` the API server, ``counts_requests`` whether it
    counts what it answers.
    """

    def __init__(self, pids: Pids, client: KubeClient, *, counts_requests: bool) -> None:
        self._pids, self._client, self._counts = pids, client, counts_requests
        self._began_s = 0.0
        self._cpu: dict[str, float] = {}
        self._requests: Counter[str] | None = None

    async def rest(self) -> None:
        """Wait until no part works any more, by the processor time of all together."""
        deadline_s = time.monotonic() + QUIET_MAX_S
        used_s = IDLE_CORES + 1.0
        while used_s > IDLE_CORES and time.monotonic() < deadline_s:
            before = cpu_by_part(self._pids)
            await asyncio.sleep(1.0)
            after = cpu_by_part(self._pids)
            used_s = sum(after[name] - before.get(name, 0.0) for name in after if name != DRIVER)

    async def begin(self) -> None:
        """Note where everything stands."""
        self._requests = await requests_so_far(self._client) if self._counts else None
        self._cpu, self._began_s = cpu_by_part(self._pids), time.monotonic()

    async def end(self) -> MeterReading:
        """Wait until all processes are idle, and give what was used since ``begin``."""
        after = await self._until_quiet()
        span_s = time.monotonic() - self._began_s
        cpu = cpu_by_part(self._pids)
        used = {name: cpu[name] - self._cpu.get(name, 0.0) for name in cpu}
        requests = None
        if after is not None and self._requests is not None:
            requests = dict(after - self._requests)
        return MeterReading(span_s, used, requests)

    async def _until_quiet(self) -> Counter[str] | None:
        if not self._counts:
            await asyncio.sleep(2 * SQL_REST_S)
            return None
        deadline_s = time.monotonic() + QUIET_MAX_S
        before = await requests_so_far(self._client)
        while True:
            await asyncio.sleep(1.0)
            after = await requests_so_far(self._client)
            if (after - before).total() <= QUIET_PER_S or time.monotonic() > deadline_s:
                return after
            before = after


# --- SQL -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Statements:
    """What Postgres was asked.

    ``by_text``: statements by their text, without BEGIN and its like and the empty ones by which
    pools test connections. ``by_role``: the same by the role that sent them. ``control``: those
    left out. ``transactions``: how many held at least one statement.
    """

    span_s: float = 0.0
    by_text: Counter[str] = field(default_factory=Counter)
    by_role: Counter[str] = field(default_factory=Counter)
    control: int = 0
    transactions: int = 0

    @property
    def number(self) -> int:
        """Statements, without those that begin and end transactions."""
        return self.by_text.total()


class SqlMeter:
    """Counts statements by having Postgres log them. Nothing that is timed runs meanwhile."""

    def __init__(self, postgres: LocalPostgres) -> None:
        self._postgres = postgres
        self._offset = 0
        self._began_s = 0.0

    async def begin(self) -> None:
        """Log from now on."""
        await asyncio.to_thread(self._set, _LOGGING)
        await asyncio.sleep(0.2)  # every session reads its settings before its next statement
        self._offset = self._log.stat().st_size
        self._began_s = time.monotonic()

    def so_far(self) -> Statements:
        """What was logged since ``begin`` or the last call of this."""
        now_s = time.monotonic()
        with self._log.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        self._offset += len(text)
        counted = count_statements(text.decode(errors="replace"))
        counted.span_s, self._began_s = now_s - self._began_s, now_s
        return counted

    async def end(self) -> None:
        """Log no more."""
        await asyncio.to_thread(self._set, dict.fromkeys(_LOGGING))

    @property
    def _log(self) -> Path:
        return self._postgres.data.log_file

    def _set(self, values: Mapping[str, str | None]) -> None:
        with psycopg.connect(self._postgres.socket_url, autocommit=True) as connection:
            for name, value in values.items():
                how = f"SET {name} = {value}" if value is not None else f"RESET {name}"
                connection.execute(f"ALTER SYSTEM {how}".encode())
            connection.execute("SELECT pg_reload_conf()")


def count_statements(log: str) -> Statements:
    """Read a log that was written under ``SqlMeter``. A statement's further lines are indented."""
    counted = Statements()
    transactions = set()
    for entry in re.split(rf"^(?={_MARK}\|)", log, flags=re.MULTILINE):
        logged = _LOGGED.match(entry)
        statement = _TEXT.match(entry[logged.start("text") :]) if logged else None
        if logged is None or statement is None or not logged["name"].startswith("fluxqueue-"):
            continue
        text = _SPACE.sub(" ", statement["sql"]).strip()
        if not text or _CONTROL.match(text):  # an empty one asks whether a connection lives
            counted.control += 1
            continue
        counted.by_text[text] += 1
        counted.by_role[logged["name"].removeprefix("fluxqueue-").partition("/")[0]] += 1
        transactions.add(logged["xid"])
    counted.transactions = len(transactions)
    return counted


# --- what others wait for ------------------------------------------------------------------------


class LongestTransaction:
    """Samples ``pg_stat_activity``: the longest transaction of a role, the longest wait for a lock.

    An ``async with`` block. Its figures (seconds) are final when the block has ended.
    """

    _EVERY_S = 0.01
    _SQL = (
        "SELECT COALESCE(max(extract(epoch FROM clock_timestamp() - xact_start))"
        " FILTER (WHERE application_name LIKE %(role)s), 0)::float8,"
        " COALESCE(max(extract(epoch FROM clock_timestamp() - query_start))"
        " FILTER (WHERE wait_event_type = 'Lock'), 0)::float8"
        " FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
    )

    def __init__(self, postgres: LocalPostgres, role: str) -> None:
        self._url, self._role = postgres.socket_url, f"fluxqueue-{role}/%"
        self._task: asyncio.Task[None] | None = None
        self.transaction_s = 0.0
        self.wait_s = 0.0

    async def __aenter__(self) -> LongestTransaction:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _sample(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
            while True:
                cursor = await connection.execute(self._SQL, {"role": self._role})
                row = await cursor.fetchone()
                assert row is not None
                self.transaction_s = max(self.transaction_s, row[0])
                self.wait_s = max(self.wait_s, row[1])
                await asyncio.sleep(self._EVERY_S)
