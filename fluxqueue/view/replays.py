"""Replays for the window: what would another policy, more nodes or other weights have done?

``server`` adds the route. It reads the recorded time, and a process of its own replays it
(``simulation.answering``), with a deadline and a limit of memory. So a replay neither stops nor
slows down the answers to others. A user has one replay at a time, and the server a few.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.reading.recorded_days import read_day
from fluxqueue.errors import FluxQueueError, InvalidInput
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.process.settings import Settings
from fluxqueue.simulation.period import check_period
from fluxqueue.view.parameters import read_moment
from fluxqueue.view.replies import to_json

AT_ONCE_MAX = 2
"""Replays of all users together. Each takes a processor for a while."""
DEADLINE_S = 90.0
MEMORY_BYTES = 160 * 2**20
"""Of the process, beside its programs (some 60 MiB). The chart's limit has room for all of them."""
JOBS_MAX = 12_000
"""Jobs of a replay in the window: two days of 5,000 jobs."""
TEXTS_MAX, TEXT_MAX = 20, 253
_KEYS = ("from", "until", "policy", "addNodes", "queueWeights")
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "TZ")
"""All that the process has of the environment, which may hold the password of the database."""


class TooManyReplays(FluxQueueError):
    """The user, or the server, has as many replays as it may have."""


class ReplayTooLong(FluxQueueError):
    """A replay has passed its deadline."""


@dataclass(frozen=True, slots=True)
class AskedReplay:
    """A replay that a user asks for. Times are epoch seconds, changes are text.

    ``is_log``: the record itself is asked for, as a workload log.
    """

    since_s: int
    until_s: int
    policy: str
    nodes: tuple[str, ...]
    weights: tuple[str, ...]
    is_log: bool = False


def read_asked(body: Mapping[str, Any], now: datetime) -> AskedReplay:
    """Read the body of a request.

    Raises
    ------
    InvalidInput
        A field is unknown or not valid.
    """
    for key in body:
        if key not in _KEYS:
            raise InvalidInput(
                "no such field", where=key[:TEXT_MAX], hint=f"known are {', '.join(_KEYS)}"
            )
    now_s = int(now.timestamp())
    since_s = _moment(body.get("from") or "1d", "from", now)
    until_s = _moment(body["until"], "until", now) if body.get("until") else now_s
    check_period(since_s, until_s, now_s)
    return AskedReplay(
        since_s=since_s,
        until_s=until_s,
        policy=_text(body.get("policy") or "", "policy"),
        nodes=_texts(body, "addNodes"),
        weights=_texts(body, "queueWeights"),
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > TEXT_MAX or not (value.isprintable()):
        shown = value[:TEXT_MAX] if isinstance(value, str) else None
        raise InvalidInput(
            "is not allowed",
            where=where,
            value=shown,
            hint=f"at most {TEXT_MAX} printable characters",
        )
    return value


def _texts(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = body.get(key) or []
    if not isinstance(value, list) or len(value) > TEXTS_MAX:
        raise InvalidInput("is no short list", where=key, hint=f"give at most {TEXTS_MAX} texts")
    return tuple(_text(one, key) for one in value)


def _moment(value: Any, where: str, now: datetime) -> int:
    text = _text(value, where)
    found = -1.0
    with suppress(OverflowError, OSError, ValueError):
        found = read_moment(text, where, now).timestamp()
    if not 0 <= found < 1 << 40:
        raise InvalidInput(
            "is not a time of a cluster",
            where=where,
            value=text,
            hint="write 2030-01-31T08:00:00Z, or an age: 12h",
        )
    return int(found)


class TimeMachine:
    """Runs replays.

    Parameters
    ----------
    levels : of the cluster, as the view server has them.
    settings : the settings of the cluster: policies and depth.
    """

    def __init__(
        self,
        reader: DatabaseReader,
        levels: Levels = DEFAULT_LEVELS,
        settings: Settings | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._reader, self._levels = reader, levels
        self._settings = settings or Settings()
        self._deadline_s, self._memory_bytes = deadline_s, memory_bytes
        self._busy: set[str] = set()

    async def replay(self, user: str, asked: AskedReplay) -> bytes:
        """Return the comparison as JSON.

        Raises
        ------
        TooManyReplays, ReplayTooLong
            It cannot run now, or did not end in time.
        InvalidInput
            The changes are not valid, or there are too many jobs.
        """
        with self._turn(user):
            return await self._replay(asked)

    @contextmanager
    def _turn(self, user: str) -> Iterator[None]:
        if user in self._busy:
            raise TooManyReplays("a replay of yours is still running: wait for its end")
        if len(self._busy) >= AT_ONCE_MAX:
            raise TooManyReplays("others have a replay running: try again in a minute")
        self._busy.add(user)
        try:
            yield
        finally:
            self._busy.discard(user)

    async def swf(self, user: str, asked: AskedReplay) -> str:
        """Return a recorded time as a workload log. Nothing is replayed.

        Raises
        ------
        TooManyReplays, ReplayTooLong, InvalidInput
            As for a replay, of which it counts as one.
        """
        return str(orjson.loads(await self.replay(user, asked))["swf"])

    async def _replay(self, asked: AskedReplay) -> bytes:
        day = await read_day(
            self._reader, since_s=asked.since_s, until_s=asked.until_s, limit=JOBS_MAX
        )
        settings = {
            "levels": [[one.name, list(one.labels)] for one in self._levels],
            "queuePolicy": self._settings.queue_policy,
            "queueDepth": self._settings.queue_depth,
            "matchPolicy": self._settings.match_policy,
        }
        changes = {"policy": asked.policy, "nodes": asked.nodes, "weights": asked.weights}
        text = to_json({"day": day, "isLog": asked.is_log, **changes, "settings": settings})
        del day
        found = await self._ask(text)
        if found.startswith(b'{"refused":'):
            raise _ReplayRefused(str(orjson.loads(found)["refused"]))
        return found

    async def _ask(self, question: bytes) -> bytes:
        """Run the process until it ends, its deadline passes, or its user has gone."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "fluxqueue.simulation.answering"),
            *(str(int(self._deadline_s) + 1), str(self._memory_bytes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                **{key: os.environ[key] for key in _KEPT_ENVIRONMENT if key in os.environ},
                # Threads of numpy take memory, and no replay needs them.
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            },
        )
        try:
            async with asyncio.timeout(self._deadline_s):
                found, _ = await process.communicate(question)
        except TimeoutError:
            raise ReplayTooLong(
                f"the replay took more than {self._deadline_s:g} s: replay a shorter time, or use"
                " fluxqueue sim"
            ) from None
        finally:
            # Also if the user has left the page: the answer would reach no user.
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        if process.returncode or not found:
            raise ReplayTooLong(
                "the replay needs more memory or time than the view server has: replay a shorter"
                " time, or use fluxqueue sim"
            )
        return found


class _ReplayRefused(InvalidInput):
    """What the process refuses, in its own words."""

    def __str__(self) -> str:
        return self.message
