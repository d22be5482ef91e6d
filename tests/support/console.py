"""The ``console`` blocks of a page: run as they stand, and held against what the page shows.

A block has commands after ``$ ``. A backslash at the end of a line or a here-document continues
them. Each is followed by what it prints on a terminal of 80 columns (``terminal``). Times, spans of
time, random endings of names, addresses and jobids are not compared, nor the width of blanks. Lines
with random names may come in any order, for these names sort them. A line ``...`` stands for any
lines. A line that ends with an ellipsis may be cut at another word. What only reads is read again
until it answers as the page says: a state is shown a moment later. What ends with a line ``^C`` is
interrupted when it has printed the lines before it. Variables that are set stay set.
``FLUXQUEUE_WRITE_PAGES=1`` writes into the page what was printed where that differs, ``all`` also
where only times, widths and the like do.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.terminal import COLUMNS, Terminal
from tests.support.waiting import WAIT_S

WRITE_ENV = "FLUXQUEUE_WRITE_PAGES"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
READING = re.compile(
    r"^(kubectl (get|describe|explain|logs)|psql|curl"
    r"|fluxqueue (jobs|explain|nodes|tree|queues|check|history|acct|db list|db history))\b"
)
_FIGURE = re.compile(r"^figure .*\n", re.MULTILINE)
"""What ``fluxqueue check`` says of the jobs of a week. A world of hundreds of jobs has it."""
OURS = re.compile(r"^(fluxqueue|kubectl fluxqueue)\b")
"""Commands with lines that fit the terminal."""
INTERRUPTED = "^C\n"
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
SETTLED_S = 5.0
"""What is written into a page has not changed for so long."""

RANDOM = "-<random>"
"""Stands for a random ending of a name."""
STATE = ".environment"
"""Where a command leaves its variables for the next one, in the shell's folder."""

_HEREDOC = re.compile(r"<<'?(\w+)'?")
_VARIABLE = [
    (re.compile(r"~?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d UTC"), "<clock>"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "<span>"),
    # Not the end of a pod's name, such as ``pi-6574d``.
    (re.compile(r"(?<!-)\b(\d+[dhms]){1,3}\b"), "<span>"),
    (re.compile(r"\b(\d+-)?\d\d:\d\d(:\d\d)?\b|\b\d+:\d\d\b"), "<span>"),
    (re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b"), RANDOM),
    (re.compile(r"\b(\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (re.compile(r"\bjob \d+"), "job <number>"),
    (re.compile(r"(?<= )\d+(?= default )"), "<number>"),
    (re.compile(r"^(\S+-(?:job|pod|group|deployment|jobset)) \d+(?= [A-Z])"), r"\1 <number>"),
    (re.compile(r"(?<= default )\d+ \d+\.\d\d \d+\.\d\d"), "<use>"),
    (re.compile(r"\b\d+\.\d\d \d+\.\d\d\b"), "<hours>"),
    (re.compile(r"\?code=\S+"), "?code=<code>"),
    (re.compile(r"127\.0\.0\.1:\d+|<address>:\d+"), "<endpoint>"),
    (re.compile(r"^\d+(?= )|(?<=^<time> )\d+(?= )"), "<number>"),
]


@dataclass(slots=True)
class Command:
    """One command of a page, and what the page shows of its output."""

    text: str
    shown: str

    @property
    def is_reading(self) -> bool:
        """Whether it may be run again."""
        return bool(READING.match(self.text)) and not self.is_interrupted

    @property
    def is_interrupted(self) -> bool:
        """Whether it goes on until the user ends it."""
        return self.shown.endswith(INTERRUPTED)


def commands(block: str) -> list[Command]:
    """The commands of one block, in order."""
    found: list[Command] = []
    lines = iter(block.splitlines())
    for line in lines:
        if not line.startswith("$ "):
            found[-1].shown += line + "\n"
            continue
        text = line[2:]
        while text.endswith("\\"):
            text += "\n" + next(lines)
        if word := _HEREDOC.search(text):
            while text.splitlines()[-1] != word[1]:
                text += "\n" + next(lines)
        found.append(Command(text, ""))
    return found


def as_compared(text: str) -> list[str]:
    """Lines without what differs from run to run."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    for pattern, word in _VARIABLE:
        lines = [pattern.sub(word, line) for line in lines]
    found: list[str] = []
    for is_random, group in itertools.groupby(lines, lambda line: RANDOM in line):
        alike = list(group)
        found += sorted(alike) if is_random else alike
    return found


def _pattern(line: str) -> str:
    if line == "...":
        return r"(.*\n)*?"
    if line.endswith(ELLIPSIS):  # where it is cut depends on numbers before it
        return re.escape(line.rsplit(" ", 1)[0]) + ".*\n"
    return re.escape(line) + "\n"


def agree(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed."""
    pattern = "".join(_pattern(line) for line in as_compared(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in as_compared(printed))) is not None


@dataclass(frozen=True, slots=True)
class Console:
    """A shell in ``folder`` in which a page's commands run one after the other.

    ``namespace`` is that of its kubeconfig. Pages call it ``default``, as in ``-n default``.
    What ``is_skipped`` says cannot run here is passed by.
    """

    folder: Path
    environ: Mapping[str, str]
    namespace: str
    is_skipped: Callable[[str], bool] = lambda _: False

    async def play(self, page: Path) -> None:
        """Run all blocks of a page. The first command that answers otherwise is a failure."""
        text = page.read_text(encoding="utf-8")
        blocks = BLOCK.findall(text)
        assert blocks, f"{page} has no commands"
        for block in blocks:
            written = ""
            for command in commands(block):
                if self.is_skipped(command.text):
                    written += f"$ {command.text}\n{command.shown}"
                    continue
                printed = _FIGURE.sub("", await self._answer(command))
                too_wide = [line for line in printed.splitlines() if len(line) > COLUMNS]
                if OURS.match(command.text):
                    assert not too_wide, f"{page.name}: $ {command.text}\n" + "\n".join(too_wide)
                if os.environ.get(WRITE_ENV):
                    shown = command.shown if self._is_kept(command.shown, printed) else printed
                    ended = "\n" if shown and not shown.endswith("\n") else ""
                    written += f"$ {command.text}\n{shown}{ended}"
                    continue
                assert agree(command.shown, printed), (
                    f"{page.name}: $ {command.text}\nshown:\n{command.shown}\nprinted:\n{printed}"
                )
            if os.environ.get(WRITE_ENV):
                text = text.replace(block, written)
                page.write_text(text, encoding="utf-8")

    @staticmethod
    def _is_kept(shown: str, printed: str) -> bool:
        is_pattern = "...\n" in shown or os.environ[WRITE_ENV] != "all"
        return is_pattern and agree(shown, printed)

    async def _answer(self, command: Command) -> str:
        if command.is_interrupted:
            return await self._interrupt(command)
        printed = await self._run(command.text)
        if not command.is_reading:
            return printed
        loop = asyncio.get_running_loop()
        began_s = changed_s = loop.time()
        while not agree(command.shown, printed) and loop.time() < began_s + WAIT_S:
            if os.environ.get(WRITE_ENV) and loop.time() > changed_s + SETTLED_S:
                break
            await asyncio.sleep(0.2)
            again = await self._run(command.text)
            if as_compared(again) != as_compared(printed):
                changed_s = loop.time()
            printed = again
        return printed

    async def _interrupt(self, command: Command) -> str:
        """Let it run until it has printed what the page shows, then press Ctrl-C."""
        wanted = command.shown.removesuffix(INTERRUPTED)
        is_writing = bool(os.environ.get(WRITE_ENV))
        quiet_s = WAIT_S
        async with self._terminal(command.text) as terminal:
            while is_writing or not agree(wanted, self._as_in_pages(terminal.printed)):
                if not await terminal.more(quiet_s):
                    break  # then it is compared, or written, as it is
                quiet_s = SETTLED_S if is_writing else WAIT_S
            printed = self._as_in_pages(terminal.printed)
            os.killpg(terminal.process.pid, signal.SIGINT)
            await terminal.end()
        return printed + INTERRUPTED

    async def _run(self, text: str) -> str:
        async with self._terminal(text) as terminal:
            return self._as_in_pages(await terminal.end())

    def _as_in_pages(self, output: str) -> str:
        return output.replace(self.namespace, "default")

    def _terminal(self, text: str) -> Terminal:
        text = text.replace("-n default", f"-n {self.namespace}")
        kept = f"{self.environ['HOME']}/{STATE}"
        shell = f"[ ! -f {kept} ] || . {kept}; trap 'export -p >{kept}' EXIT; set -a\n{text}"
        return Terminal(shell, folder=self.folder, environ=self.environ)
