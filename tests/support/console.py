"""The ``console`` blocks of a page: run as they stand, and held against what the page shows.

A block has commands after ``$ `` (continued by a backslash at the end of a line, or up to the end
of a here-document), each followed by what it prints. Times, spans of time, random endings of names,
addresses and jobids are not compared, nor how much blank stands between words; a line ``...`` is
any lines. What only reads is read again until it answers as the page says: a state is told a
moment later. ``FLUXQUEUE_WRITE_PAGES=1`` writes into the page what was printed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import WAIT_S

WRITE_ENV = "FLUXQUEUE_WRITE_PAGES"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
READING = re.compile(
    r"^(kubectl (get|describe|explain)|fluxqueue (jobs|explain|nodes|tree|queues|check|db list))\b"
)
SETTLED_S = 2.5
"""What is written into a page has not changed for so long."""

_HEREDOC = re.compile(r"<<'?(\w+)'?")
_VARIABLE = [
    (re.compile(r"~?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)?"), "<time>"),
    (re.compile(r"\b\d\d:\d\d UTC"), "<clock>"),
    (re.compile(r"\b\d+(\.\d+)? s\b"), "<span>"),
    (re.compile(r"\b(\d+[dhms]){1,3}\b"), "<span>"),
    (re.compile(r"\b(\d+-)?\d\d:\d\d(:\d\d)?\b|\b\d+:\d\d\b"), "<span>"),
    (re.compile(r"-[bcdfghjklmnpqrstvwxz2456789]{5}\b"), "-<random>"),
    (re.compile(r"\b(\d{1,3}\.){3}\d{1,3}\b"), "<address>"),
    (re.compile(r"\bjob \d+"), "job <number>"),
    (re.compile(r"(?<= )\d+(?= default )"), "<number>"),
    (re.compile(r"^\d+(?= )"), "<number>"),
]


@dataclass(slots=True)
class Command:
    """One command of a page, and what the page shows of its output."""

    text: str
    shown: str

    @property
    def is_reading(self) -> bool:
        """Whether it may be run again."""
        return bool(READING.match(self.text))


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
    return lines


def agree(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed."""
    wanted = [re.escape(line) + "\n" for line in as_compared(shown)]
    pattern = "".join(r"(.*\n)*?" if line == re.escape("...") + "\n" else line for line in wanted)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in as_compared(printed))) is not None


@dataclass(frozen=True, slots=True)
class Console:
    """A shell in ``folder`` in which a page's commands run one after the other.

    ``namespace`` is that of its kubeconfig; pages call it ``default``.
    """

    folder: Path
    environ: Mapping[str, str]
    namespace: str

    async def play(self, page: Path) -> None:
        """Run all blocks of a page; the first command that answers otherwise is a failure."""
        text = page.read_text(encoding="utf-8")
        blocks = BLOCK.findall(text)
        assert blocks, f"{page} has no commands"
        for block in blocks:
            written = ""
            for command in commands(block):
                printed = await self._answer(command)
                if os.environ.get(WRITE_ENV):
                    shown = command.shown if agree(command.shown, printed) else printed
                    written += f"$ {command.text}\n{shown}"
                    continue
                assert agree(command.shown, printed), (
                    f"{page.name}: $ {command.text}\nshown:\n{command.shown}\nprinted:\n{printed}"
                )
            if written:
                text = text.replace(block, written)
                page.write_text(text, encoding="utf-8")

    async def _answer(self, command: Command) -> str:
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

    async def _run(self, text: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", text),
            cwd=self.folder,
            env={**self.environ},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        return output.decode().replace(self.namespace, "default")
