"""A recorded watch, opened for real: gathers lines beside the other steps, compares at the end."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.conformance.matching import Bindings, Comparison, is_reduced

EVENTS_TIMEOUT_S = 15.0
CATCH_UP_S = 13.0
SOFT_CATCH_UP_S = 1.5
PAUSE_S = 0.2
QUIET_S = 0.15


@dataclass
class ReplayedWatch:
    """One watch step. ``index`` is its place in the scenario, ``acts`` those of its requests."""

    index: int
    step: Any
    acts: list[int] = field(default_factory=list)
    lines: list[Any] = field(default_factory=list)
    code: int = 0
    body: Any = None
    task: asyncio.Task[None] | None = None
    is_late: bool = False
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def start(self, session: aiohttp.ClientSession, url: str, query: Any, headers: Any) -> None:
        """Open it in the background."""
        self.task = asyncio.create_task(self._read(session, url, query, headers))

    async def _read(
        self, session: aiohttp.ClientSession, url: str, query: Any, headers: Any
    ) -> None:
        try:
            async with session.get(
                url,
                params={**query, "watch": "1"},
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=300),
            ) as response:
                self.code = response.status
                self.opened.set()
                if "body" in self.step or response.status != 200:
                    text = await response.text()
                    self.body = json.loads(text) if text.startswith("{") else text
                    return
                async for line in response.content:
                    self.lines.append(json.loads(line))
        finally:
            self.opened.set()

    async def catch_up(self, index: int, *, is_read: bool) -> None:
        """Wait for the events that had been seen before step ``index``.

        An event noted after step n was caused by the next request at the latest (notes in between
        cause nothing).  Before a read, those noted after the step before it are waited for, too,
        but not long.
        """
        seen = self.step.get("seen_after_step") or ()
        if not self.is_late:
            last = max((act for act in self.acts if act < index), default=0)
            self.is_late = not await self._has(sum(1 for s in seen if s < last), CATCH_UP_S)
        if not self.is_late and (is_read or self._comes_by_itself(index)):
            await self._has(sum(1 for s in seen if s < index), SOFT_CATCH_UP_S)

    def _comes_by_itself(self, index: int) -> bool:
        """Whether the next event came so late on record that a controller must have made it."""
        seen = self.step.get("seen_after_step") or ()
        times = self.step.get("seconds") or ()
        before = [t for t, s in zip(times, seen, strict=False) if s < index - 1]
        here = [t for t, s in zip(times, seen, strict=False) if s == index - 1]
        return bool(here) and here[-1] - (before[-1] if before else 0.0) > PAUSE_S

    async def _has(self, wanted: int, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while len(self.lines) < wanted:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            return False
        return True

    async def finish(self, bindings: Bindings, *, by_object: bool) -> list[str]:
        """Wait for the recorded number of events, close, and compare."""
        recorded = self.step["events"]
        wanted = _kinds(recorded)
        try:
            limit = EVENTS_TIMEOUT_S if recorded else 0.5
            async with asyncio.timeout(limit):
                while len(_kinds(self.lines)) < len(wanted) or not self.code:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            pass
        await asyncio.sleep(QUIET_S)
        if self.step.get("closed_by") == "server" and self.task is not None:
            await asyncio.wait([self.task], timeout=EVENTS_TIMEOUT_S)
        is_open = self.task is not None and not self.task.done()
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        comparison = Comparison(bindings)
        path = f"watch #{self.index}"
        if self.step.get("code", 200) != self.code:
            comparison.note(f"{path} code", self.step.get("code", 200), self.code)
        if "body" in self.step:
            comparison.compare(self.step["body"], self.body, f"{path} body")
        if self.step.get("closed_by") == "server" and is_open:
            comparison.note(f"{path} closed by", "server", "nobody")
        if by_object:
            _compare_by_object(comparison, recorded, self.lines, path)
        else:
            _compare_in_order(comparison, recorded, self.lines, path)
        return comparison.differences


def _kinds(events: list[Any]) -> list[str]:
    return [e["type"] for e in events]


def _compare_in_order(
    comparison: Comparison, recorded: list[Any], actual: list[Any], path: str
) -> None:
    if _kinds(recorded) != _kinds(actual):
        comparison.note(f"{path} events", _summary(recorded), _summary(actual))
    for index, (left, right) in enumerate(zip(recorded, actual, strict=False)):
        comparison.compare(left["type"], right["type"], f"{path}[{index}].type")
        loose = is_reduced(left["object"])
        comparison.compare(left["object"], right["object"], f"{path}[{index}].object", loose=loose)


def _summary(events: list[Any]) -> list[str]:
    return [f"{e['type']} {(e['object'].get('metadata') or {}).get('name', '')}" for e in events]


def _name_of(event: Any) -> str:
    return str((event["object"].get("metadata") or {}).get("name", ""))


def _compare_by_object(
    comparison: Comparison, recorded: list[Any], actual: list[Any], path: str
) -> None:
    """Each object's own events in order. Which of several objects comes first is not fixed."""
    left = _grouped(recorded)
    right = _grouped(actual)
    if len(left) != len(right):
        comparison.note(f"{path} objects", list(left), list(right))
        return
    for name, events in left.items():
        chosen = _counterpart(comparison, events, right, name)
        if chosen is None:
            comparison.note(f"{path} {name}", _summary(events), list(right))
            continue
        _compare_in_order(comparison, events, right.pop(chosen), f"{path} {name}")


def _grouped(events: list[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for event in events:
        groups.setdefault(_name_of(event), []).append(event)
    return groups


def _counterpart(
    comparison: Comparison, events: list[Any], groups: dict[str, list[Any]], name: str
) -> str | None:
    best: tuple[int, str] | None = None
    for other, candidates in groups.items():
        trial = Comparison(Bindings(dict(comparison.bindings.values)))
        if not trial.bindings.bind_text(name, other):
            continue
        _compare_in_order(trial, events, candidates, "")
        if best is None or len(trial.differences) < best[0]:
            best = (len(trial.differences), other)
    return best[1] if best is not None else None
