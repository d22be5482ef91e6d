"""How answers are printed: aligned columns, JSON, YAML, names, custom columns.

A printer takes objects in batches, so a long list is never in memory as a whole. Colours are used
only at terminals, and not if NO_COLOR is set (no-color.org).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import typer

from fluxqueue.cli.messages import INDENT, wrapped
from fluxqueue.errors import InvalidInput

Cells = tuple[str, ...]
COLOURS = {
    "Running": "green", "Allocated": "green", "Completed": "green", "idle": "green",
    "mixed": "green", "allocated": "blue", "Pending": "yellow", "Reserved": "yellow",
    "Provisioning": "yellow", "Gathering": "yellow", "draining": "yellow", "drained": "yellow",
    "Held": "magenta", "Unsatisfiable": "red", "Failed": "red", "Cancelled": "red", "down": "red",
}  # fmt: skip
GAP = "   "
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
CUT = frozenset(
    {"NAME", "NAMESPACE", "USER", "QUEUE", "NODES", "NODE", "FLUXJOB", "KIND", "PLACE", "ZONE",
     "RACK", "BLOCK", "IN THE WAY", "ACTOR", "REASON"}
)  # fmt: skip
"""Columns with names, which a narrow terminal cuts."""
NAME_LEAST = 6
"""Characters that a cut name keeps."""
LAST_LEAST = 20
"""Characters that the last column keeps while other columns can be cut."""
_STEP = re.compile(r"\.([A-Za-z_][\w-]*)|\[(\d+)\]|\['([^']+)'\]")


def check_output(output: str, allowed: Sequence[str]) -> None:
    """Refuse a value of ``--output`` that is not ``allowed``. Raises ``InvalidInput``."""
    if output not in allowed:
        hint = ", ".join(allowed)
        raise InvalidInput(f"invalid output format {output!r}", where="-o", value=output, hint=hint)


def is_coloured() -> bool:
    """Return whether standard output is a terminal with colours."""
    dull = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not dull


def terminal_width() -> int:
    """Return the columns of the terminal, or 0 if standard output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def fit(headers: Sequence[str], widths: Sequence[int], limit: int) -> tuple[list[int], int]:
    """Return widths of columns that fit ``limit`` characters, and the width of the gap.

    The gap shrinks first, then the widest of the columns that hold names, then the last column. A
    state, a time or a number is never cut.
    """
    found, gap = list(widths), len(GAP)

    def over() -> int:
        return sum(found) + gap * (len(found) - 1) - limit

    while gap > 1 and over() > 0:
        gap -= 1
    last = len(found) - 1
    least_last = min(found[last], max(len(headers[last]), LAST_LEAST))
    while over() > 0:
        names = [
            n
            for n in range(last)
            if headers[n] in CUT and found[n] > max(len(headers[n]), NAME_LEAST)
        ]
        if found[last] > least_last:
            found[last] = max(least_last, found[last] - over())
        elif names:
            found[max(names, key=lambda n: found[n])] -= 1
        elif found[last] > len(headers[last]):
            found[last] = max(len(headers[last]), found[last] - over())
        else:
            break
    return found, gap


def say(line: str, indent: str = INDENT) -> None:
    """Print a line, which a terminal breaks between words. Further lines begin with ``indent``."""
    typer.echo(wrapped(line, terminal_width(), indent))


def plain(text: str) -> str:
    """Return ``text`` without control characters, which a terminal would obey.

    Names of users and reasons may contain what others wrote.
    """
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else "?" for one in text)


def cut(text: str, width: int, *, is_prose: bool = False) -> str:
    """Return ``text`` in at most ``width`` characters, prose without a part of a word."""
    if len(text) <= width:
        return text
    kept = text[: max(0, width - 1)]
    if is_prose and text[len(kept)] != " " and " " in kept.strip():
        kept = kept.rsplit(" ", 1)[0]
    return f"{kept.rstrip()}{ELLIPSIS}"


class TextTable:
    """Aligned columns. Widths are those of the first batch, and grow with later ones.

    On a terminal a line is never wider than the screen: names and the last column are cut.
    """

    def __init__(self, headers: Sequence[str]) -> None:
        self._headers = tuple(headers)
        self._widths = [0] * len(self._headers)
        self._gap = len(GAP)
        self._limit = terminal_width()
        self._has_begun = False

    def write(self, rows: Sequence[Cells]) -> None:
        """Print rows, the first ones below the headers."""
        lines = [tuple(plain(cell) or "-" for cell in row) for row in rows]
        shown = lines if self._has_begun else [self._headers, *lines]
        if not (self._limit and self._has_begun):
            for column, width in enumerate(self._widths):
                self._widths[column] = max([width, *(len(line[column]) for line in shown)])
        if self._limit and not self._has_begun:
            self._widths, self._gap = fit(self._headers, self._widths, self._limit)
        coloured = is_coloured()
        for line in shown:
            typer.echo(self._join(line, coloured and line is not self._headers))
        self._has_begun = True

    def _join(self, line: Cells, coloured: bool) -> str:
        last = len(line) - 1
        if self._limit:
            line = tuple(
                cut(cell, self._widths[n], is_prose=n == last)
                if n == last or self._headers[n] in CUT
                else cell
                for n, cell in enumerate(line)
            )
        cells = [cell.ljust(width) for cell, width in zip(line, self._widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        if coloured:
            cells = [_colour(cell) for cell in cells]
        return (" " * self._gap).join(cells).rstrip()


def _colour(cell: str) -> str:
    colour = COLOURS.get(cell.rstrip())
    return typer.style(cell, fg=colour) if colour else cell


def document(value: Any, output: str) -> None:
    """Print a value as a whole: ``output`` is json or yaml."""
    as_json = json.dumps(value, indent=2)
    if output == "json":
        typer.echo(as_json)
        return
    import yaml

    typer.echo(yaml.safe_dump(json.loads(as_json), sort_keys=False), nl=False)


class Printer(Protocol):
    """One output format for objects of the API."""

    def prepare(self, item: Mapping[str, Any]) -> Any:
        """Return what must be kept of an object until it is written."""
        ...

    def write(self, prepared: Sequence[Any]) -> None:
        """Print a batch."""
        ...

    def close(self) -> None:
        """Print the end of the list."""
        ...


class TextColumns:
    """A table with cells made of objects."""

    def __init__(self, headers: Sequence[str], cells: Callable[[Mapping[str, Any]], Cells]) -> None:
        self._table, self._cells = TextTable(headers), cells

    def prepare(self, item: Mapping[str, Any]) -> Cells:
        """Return the cells of an object."""
        return self._cells(item)

    def write(self, prepared: Sequence[Cells]) -> None:
        """Print lines."""
        self._table.write(prepared)

    def close(self) -> None:
        """A table needs no end."""


class Json:
    """A List as kubectl prints it. With ``is_lines`` one object per line, for watching."""

    def __init__(self, *, is_lines: bool = False) -> None:
        self._is_lines, self._is_first = is_lines, True

    def prepare(self, item: Mapping[str, Any]) -> bytes:
        """Return the object as compact JSON."""
        return json.dumps(item, separators=(",", ":")).encode()

    def write(self, prepared: Sequence[bytes]) -> None:
        """Print objects."""
        for one in prepared:
            if self._is_lines:
                typer.echo(one.decode())
                continue
            typer.echo(self._opening() if self._is_first else ",")
            typer.echo(json.dumps(json.loads(one), indent=2), nl=False)
            self._is_first = False

    def close(self) -> None:
        """End the list."""
        if not self._is_lines:
            typer.echo(f"{self._opening()}]}}" if self._is_first else "\n]}")

    def _opening(self) -> str:
        return '{"apiVersion": "v1", "kind": "List", "items": ['


class Yaml:
    """YAML documents, one after the other."""

    def prepare(self, item: Mapping[str, Any]) -> bytes:
        """Return the object as compact JSON."""
        return json.dumps(item, separators=(",", ":")).encode()

    def write(self, prepared: Sequence[bytes]) -> None:
        """Print documents."""
        import yaml

        for one in prepared:
            typer.echo("---")
            typer.echo(yaml.safe_dump(json.loads(one), sort_keys=False), nl=False)

    def close(self) -> None:
        """YAML documents need no end."""


class Names:
    """``fluxjob.jobs.converged-computing.org/train-job``, as kubectl accepts them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def prepare(self, item: Mapping[str, Any]) -> str:
        """Return the name of an object."""
        return f"{self._prefix}/{item['metadata']['name']}"

    def write(self, prepared: Sequence[str]) -> None:
        """Print names."""
        for one in prepared:
            typer.echo(one)

    def close(self) -> None:
        """Names need no end."""


def read_path(path: str, where: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a reader of ``.status.conditions[0].reason``. A missing value reads as empty.

    Raises
    ------
    InvalidInput
        The text is not such a path.
    """
    steps: list[str | int] = []
    at = 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise InvalidInput(
                f"{path!r} is not a path", where=where, value=path, hint="such as .status.state"
            )
        name, number, quoted = found.groups()
        steps.append(int(number) if number else name or quoted)
        at = found.end()

    def read(item: Mapping[str, Any]) -> str:
        value: Any = item
        for step in steps:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return ""
        return value if isinstance(value, str) else json.dumps(value)

    return read


def span(seconds: int) -> str:
    """Write a length of time as kubectl writes ages: ``42s``, ``5m``, ``3h12m``, ``2d4h``."""
    seconds = max(0, seconds)
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if hours < 2:
        return f"{minutes}m"
    if days < 2:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"


def short_time(at_s: int | None, now: int) -> str:
    """Write a time in the zone of this machine: ``17:11`` today, ``Nov24`` else, empty for None.

    A day of another year has its year: ``2030-11-24``.
    """
    from datetime import datetime

    if at_s is None:
        return ""
    at, today = (datetime.fromtimestamp(one).astimezone() for one in (at_s, now))
    if at.date() == today.date():
        return at.strftime("%H:%M")
    return at.strftime("%b%d" if at.year == today.year else "%Y-%m-%d")
