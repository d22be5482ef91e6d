"""``fluxqueue top``: the present queue on the whole screen, until q is pressed.

It needs only the kubeconfig. FluxJobs are read once, running ones first, and then watched. One line
of each is kept, in order. Drawing covers the screen and replaces the old content, so nothing
flickers. Of long lists only the visible part is drawn.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.user import jobs, printing
from fluxqueue.cli.user.access import Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_queues
from fluxqueue.errors import ApiUnavailable, Gone, InvalidInput

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fluxqueue.client.fluxjob_lists import JobLine
    from fluxqueue.client.narrowed import Narrowed

TICK_S = 1.0
"""Seconds between two drawings if nothing changes: the times on screen advance."""
LEAST_S = 0.2
"""Minimum seconds between two drawings. Drawing also takes at most a fifth of the time."""
AGAIN_S = 2.0
OTHER_ROWS = 5
"""Lines without FluxJobs: two of totals, a blank one, headings, keys."""
KEYS = "q quit   ↑ ↓ PgUp PgDn Home End scroll   o order   r reverse"

_KEY = re.compile(rb"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_ARROWS = {
    b"\x1b[A": -1, b"k": -1, b"\x1bOA": -1, b"\x1b[B": 1, b"j": 1, b"\x1bOB": 1,
}  # fmt: skip
_PAGES = {b"\x1b[5~": -1, b"\x1b[6~": 1, b" ": 1, b"b": -1}
_FIRST, _LAST = {b"\x1b[H", b"\x1b[1~", b"\x1bOH", b"g"}, {b"\x1b[F", b"\x1b[4~", b"\x1bOF", b"G"}


@with_access(may_be_everywhere=True)
def top(
    access: Access,
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="only this queue", autocompletion=complete_queues)
    ] = "",
    user: Annotated[str, typer.Option("--user", "-u", help="only jobs of this user")] = "",
    sort: Annotated[
        str, typer.Option(help="turn, name, age, jobid, priority, queue, size, start, state, user")
    ] = "turn",
) -> None:
    """Watch the queue on the whole screen: running jobs, then waiting jobs by turn.

    Keys: q quits, arrows and pages scroll, o selects the next order, r reverses it.

    Examples:

      fluxqueue top -A

      fluxqueue top -u alice --sort -age
    """
    from fluxqueue.client.fluxjob_lists import ORDERS, parse_order

    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise InvalidInput(
            "standard output is not a terminal with cursor control",
            where="top",
            hint="fluxqueue jobs prints a table, with --watch also each change",
        )
    parse_order(sort)
    board = Board(
        is_everywhere=access.is_everywhere,
        queue=queue,
        user=user,
        order=list(ORDERS).index(sort.removeprefix("-")),
        is_backwards=sort.startswith("-"),
    )

    async def work(cluster: ClusterAccess) -> None:
        board.where = cluster.namespace or "all namespaces"
        await _Top(cluster, board).run()

    access.run(work)


@dataclass
class Board:
    """What is shown, and how: FluxJobs by UID, their order, the scroll position."""

    is_everywhere: bool = False
    queue: str = ""
    user: str = ""
    order: int = 0
    is_backwards: bool = False
    where: str = ""
    trouble: str = "reading ..."
    offset: int = 0
    lines: dict[str, JobLine] = field(default_factory=dict)
    states: Counter[str] = field(default_factory=Counter)
    pods_started: int = 0
    _ordered: list[tuple[Any, str]] = field(default_factory=list)

    def put(self, fluxjob: Mapping[str, Any], *, is_gone: bool = False) -> None:
        """Add or update a FluxJob. Ended ones are removed."""
        from fluxqueue.client.fluxjob_lists import read_line
        from fluxqueue.fluxjob.states import FINAL

        line, uid = read_line(fluxjob), fluxjob["metadata"]["uid"]
        is_of = self.queue in {"", line.queue} and self.user in {"", line.user}
        self.drop(uid)
        if is_of and not is_gone and line.state not in FINAL:
            self.lines[uid] = line
            insort(self._ordered, (self._key(line), uid))
            self._count(line, 1)

    def drop(self, uid: str) -> None:
        """Remove a FluxJob, if it is shown."""
        line = self.lines.pop(uid, None)
        if line is not None:
            del self._ordered[bisect_left(self._ordered, (self._key(line), uid))]
            self._count(line, -1)

    def _count(self, line: JobLine, more: int) -> None:
        self.states[line.state] += more
        if line.started is not None:
            self.pods_started += more * line.size

    def _key(self, line: JobLine) -> Any:
        return self._order()[1](line)

    def _order(self) -> tuple[str, Callable[[JobLine], Any]]:
        from fluxqueue.client.fluxjob_lists import ORDERS

        return list(ORDERS.items())[self.order]

    def _shown(self, page: int) -> list[JobLine]:
        """Return the lines that fit the screen, from the scroll position on."""
        end = self.offset + page
        if self.is_backwards:
            last = len(self._ordered)
            uids = self._ordered[max(0, last - end) : last - self.offset][::-1]
        else:
            uids = self._ordered[self.offset : end]
        return [self.lines[uid] for _, uid in uids]

    def press(self, key: bytes, page: int) -> bool:
        """Handle a key. Return False to quit. ``page`` is the number of FluxJobs on the screen."""
        from fluxqueue.client.fluxjob_lists import ORDERS

        if key in {b"q", b"Q"}:
            return False
        if key == b"o":
            self.order, self.offset = (self.order + 1) % len(ORDERS), 0
            self._ordered = sorted((self._key(line), uid) for uid, line in self.lines.items())
        elif key == b"r":
            self.is_backwards, self.offset = not self.is_backwards, 0
        elif key in _FIRST:
            self.offset = 0
        elif key in _LAST:
            self.offset = len(self.lines)
        self.offset += _ARROWS.get(key, 0) + page * _PAGES.get(key, 0)
        return True

    def draw(self, width: int, height: int, now: int) -> RenderableType:
        """Return the whole screen of ``width`` characters and ``height`` lines."""
        from rich.console import Group
        from rich.text import Text

        page = page_of(height)
        self.offset = max(0, min(self.offset, len(self.lines) - page))
        shown = self._shown(page)
        last = self.offset + len(shown)
        order = f"{'-' if self.is_backwards else ''}{self._order()[0]}"
        head = Text(no_wrap=True, overflow="ellipsis")
        head.append("fluxqueue top", style="bold")
        head.append(f"  {self.where}  {jobs.clock_time(now)}  by {order}")
        head.append(f"  {self.trouble}", style="red")
        place = f"{self.offset + 1}-{last} of {len(self.lines)}" if shown else "no jobs"
        foot = Text(f"{place}   {KEYS}", style="dim", no_wrap=True, overflow="ellipsis")
        blank = [Text("")] * (page - len(shown))
        return Group(head, self._sums(), Text(""), self._table(shown, width, now), *blank, foot)

    def _sums(self) -> RenderableType:
        from rich.text import Text

        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{len(self.lines)} jobs, {self.pods_started} pods started")
        for state, count in (+self.states).most_common():
            text.append("  ")
            text.append(f"{state} {count}", style=printing.COLOURS.get(state, ""))
        return text

    def _table(self, lines: Sequence[JobLine], width: int, now: int) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        names = [*(["NAMESPACE"] if self.is_everywhere else []), *jobs.SHORT]
        rows = [[jobs.SHORT_CELLS[name](line, now) or "-" for name in names] for line in lines]
        natural = [max(len(one[n]) for one in (names, *rows)) for n in range(len(names))]
        widths, gap = printing.fit(names, natural, width)
        widths[-1] = max(1, width - sum(widths[:-1]) - gap * (len(widths) - 1))
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="reverse")
        for name, one in zip(names, widths, strict=True):
            table.add_column(name, no_wrap=True, overflow="ellipsis", width=one)
        for row in rows:
            style = [printing.COLOURS.get(cell, "") for cell in row]
            cells = [
                printing.cut(cell, one, is_prose=n == len(row) - 1)
                for n, (cell, one) in enumerate(zip(row, widths, strict=True))
            ]
            table.add_row(*(Text(cell, how) for cell, how in zip(cells, style, strict=True)))
        return table


def page_of(height: int) -> int:
    """Return how many FluxJobs fit a screen of ``height`` lines."""
    return max(1, height - OTHER_ROWS)


class _Top:
    """A board that is updated and drawn until a key ends it."""

    def __init__(self, cluster: ClusterAccess, board: Board) -> None:
        from rich.console import Console

        self._cluster, self._board = cluster, board
        self._console = Console()
        self._changed, self._over = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Draw until the user quits or the API server refuses."""
        with _keys(self._press), _resizes(self._changed.set):
            tasks = [asyncio.create_task(one) for one in (self._follow(), self._draw())]
            over = asyncio.create_task(self._over.wait())
            try:
                await asyncio.wait([*tasks, over], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*tasks, over):
                    task.cancel()
                ended = await asyncio.gather(*tasks, return_exceptions=True)
        for one in ended:
            if isinstance(one, Exception):
                raise one

    def _press(self, key: bytes) -> None:
        if not self._board.press(key, page_of(self._console.height)):
            self._over.set()
        self._changed.set()

    async def _draw(self) -> None:
        from rich.live import Live

        loop = asyncio.get_running_loop()
        with Live(console=self._console, screen=True, auto_refresh=False) as live:
            while True:
                self._changed.clear()
                began_s = loop.time()
                size = self._console.size
                live.update(self._board.draw(size.width, size.height, jobs.now_s()), refresh=True)
                await asyncio.sleep(max(LEAST_S, 4 * (loop.time() - began_s)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._changed.wait()

    async def _follow(self) -> None:
        while True:
            try:
                await self._read_and_watch()
            except ApiUnavailable as error:
                self._say(f"not up to date: {error}")
                await asyncio.sleep(AGAIN_S)
            except Gone:
                pass  # the watch began too long ago: read all again

    async def _read_and_watch(self) -> None:
        from fluxqueue.client.narrowed import Narrowed

        client, where, seen = self._cluster.client, self._cluster.namespace, set[str]()
        source = Narrowed(client, where, self._board.user)
        await self._read(source, seen)
        for uid in self._board.lines.keys() - seen:
            self._board.drop(uid)
        self._say("")
        await self._watch(source.version)

    async def _read(self, source: Narrowed, seen: set[str]) -> None:
        """Read running jobs first, then waiting ones, so that they appear before all are read.

        The watch begins before the first page, and so reports every change meanwhile.
        """
        from fluxqueue.client.fluxjob_lists import STAGES
        from fluxqueue.fluxjob.states import FINAL

        for stage in STAGES:
            if stage == FINAL:
                continue
            states = frozenset(map(str, stage))
            async with aclosing(source.pages(states)) as pages:
                async for page in pages:
                    for one in page.items:
                        seen.add(one["metadata"]["uid"])
                        self._board.put(one)
                    self._changed.set()
            if not source.is_selecting:
                return  # it sent all of them

    async def _watch(self, version: str) -> None:
        from fluxqueue.kube.resources import FLUXJOBS

        client, where = self._cluster.client, self._cluster.namespace
        while True:
            events = client.watch(FLUXJOBS, where, resource_version=version)
            async with aclosing(events) as events:
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        self._board.put(event.object, is_gone=event.type == "DELETED")
                        self._changed.set()

    def _say(self, trouble: str) -> None:
        self._board.trouble = trouble
        self._changed.set()


@contextmanager
def _keys(press: Callable[[bytes], None]) -> Iterator[None]:
    """Read keys at once and without echo. Without a keyboard, Ctrl-C quits."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)

    def read() -> None:
        for key in _KEY.findall(os.read(keyboard, 1024)):  # several, if the user types fast
            press(key)

    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


@contextmanager
def _resizes(apply_spec_changes: Callable[[], None]) -> Iterator[None]:
    """Call ``apply_spec_changes`` when the terminal changes its size."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, apply_spec_changes)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
