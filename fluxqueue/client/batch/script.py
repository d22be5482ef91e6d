"""Read a batch script: its ``#FLUX:`` and ``#SBATCH`` lines, and the command that runs it.

Pure: text in, ``Script`` out. The lines are read as a whole. ``script_request`` translates them
together, because ``-N 2 -n 8`` means the same in any order. ``directives`` has the options.
Lines after the first command are not directives, and ``# SBATCH`` is a comment, as in Slurm.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.client.batch.directives import (
    DIALECTS,
    Argument,
    Directive,
    Fate,
    by_long,
    by_short,
)
from fluxqueue.errors import InvalidInput

SCRIPT_MAX_BYTES = 100_000
"""One argument of a process may have 128 KiB (MAX_ARG_STRLEN of Linux)."""

_DIRECTIVE = re.compile(
    r"^(?:#(?P<slurm>SBATCH)(?=[\s-])|#\s?(?P<flux>(?i:flux)):)\s*(?P<words>.*)$"
)
_BY_C = re.compile(r"^(?:ba|da|z|k)?sh$|^python[0-9.]*$")
_BY_E = frozenset({"perl", "ruby", "node"})
_SEVERAL_JOBS = frozenset({"hetjob", "packjob"})
LISTS = frozenset({"env", "requires", "export"})
"""Directives that add up. Of others the last one counts."""


@dataclass(frozen=True, slots=True)
class Said:
    """The value of a directive, the dialect, and its line, for messages."""

    value: str
    where: str
    dialect: str = "slurm"


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was read: ``said`` has the directives by their keys, in order."""

    command: tuple[str, ...]
    said: Mapping[str, tuple[Said, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def read_script(text: str, name: str) -> Script:
    """Read a script: its directives, and the command that runs it.

    Raises
    ------
    InvalidInput
        A directive is unknown or cannot be met, or the first line is not usable.
    """
    if len(text.encode()) > SCRIPT_MAX_BYTES:
        raise InvalidInput(
            f"is longer than {SCRIPT_MAX_BYTES} bytes",
            where=name,
            hint="put it into an image or a ConfigMap",
        )
    command = interpreter(text, name)
    said: dict[str, tuple[Said, ...]] = {}
    ignored: dict[str, None] = {}
    for number, line in enumerate(text.split("\n"), 1):
        found = _DIRECTIVE.match(line)
        if found:
            dialect = "slurm" if found["slurm"] else "flux"
            for one, value in _options(found["words"], dialect, f"{name}:{number}"):
                if one.fate is Fate.IGNORED:
                    ignored[f"--{one.name}"] = None
                    continue
                new = Said(value, f"{name}:{number}", dialect)
                before = said.get(one.meaning, ()) if one.meaning in LISTS else ()
                said[one.meaning] = (*before, new)
        elif line.strip() and not line.lstrip().startswith("#"):
            break  # as in Slurm: lines after the first command are not directives
    return Script(command, said, tuple(ignored))


def interpreter(text: str, name: str) -> tuple[str, ...]:
    """Return the command that runs ``text`` without a file, by its first line.

    Raises
    ------
    InvalidInput
        It has no such line, or its interpreter takes no program as an argument.
    """
    first = text.split("\n", 1)[0]
    if not first.startswith("#!"):
        raise InvalidInput("does not begin with #!", where=name, hint="such as #!/bin/sh")
    words = shlex.split(first[2:])
    program = next((w.rsplit("/", 1)[-1] for w in words if not w.endswith("/env")), "")
    if _BY_C.match(program):
        return (*words, "-c", text)
    if program in _BY_E:
        return (*words, "-e", text)
    raise InvalidInput(
        f"{program or first!r} takes no program as an argument",
        where=f"{name}:1",
        hint="sh, bash, python, perl, ruby or node, or use a command: fluxqueue submit -- CMD",
    )


def _options(words: str, dialect: str, where: str) -> list[tuple[Directive, str]]:
    """Return the options of one line with their values."""
    try:
        rest = shlex.split(words, comments=True)
    except ValueError as error:
        raise InvalidInput(f"cannot be read: {error}", where=where) from None
    found = []
    while rest:
        one, value, rest = _next(rest, dialect, where)
        found.append((one, value))
    return found


def _next(words: list[str], dialect: str, where: str) -> tuple[Directive, str, list[str]]:
    """Return the first option with its value, and the words after it."""
    word, rest = words[0], words[1:]
    one, value = _find(word, dialect, where)
    if one.fate is Fate.REFUSED:
        raise InvalidInput(
            f"{word} cannot be kept on this cluster", where=where, value=word, hint=one.text
        )
    if one.argument is Argument.NONE:
        if value is not None and word.startswith("--"):
            raise InvalidInput(f"--{one.name} takes no value", where=where, value=word)
        # As getopt has it, letters without a value may share a dash.
        return one, "", [f"-{value}", *rest] if value else rest
    if value is None and one.argument is Argument.REQUIRED:
        if not rest:
            raise InvalidInput(f"{word} needs a value", where=where)
        value, rest = rest[0], rest[1:]
    return one, value or "", rest


def _find(word: str, dialect: str, where: str) -> tuple[Directive, str | None]:
    """Return the option that ``word`` names, and the value within the word."""
    table = DIALECTS[dialect]
    if word in _SEVERAL_JOBS and dialect == "slurm":
        raise InvalidInput(
            "a job with parts of several shapes cannot be a script",
            where=where,
            value=word,
            hint="use a Job manifest with the annotation fluxqueue/jobspec, or a pod group",
        )
    candidates: Sequence[Directive] = ()
    value: str | None = None
    if word.startswith("--"):
        name, has_value, text = word[2:].partition("=")
        value = text if has_value else None
        candidates = by_long(table, name)
    elif word.startswith("-") and len(word) > 1:
        letter = by_short(table, word[1])
        candidates = () if letter is None else (letter,)
        value = word[2:].removeprefix("=") or None
    if len(candidates) == 1:
        return candidates[0], value
    listed = candidates or [one for one in table if one.fate is Fate.TRANSLATED]
    known = ", ".join(sorted(f"--{one.name}" for one in listed))
    problem = "is short for several directives" if candidates else "is not a known directive"
    raise InvalidInput(f"{word!r} {problem}", where=where, value=word, hint=known)
