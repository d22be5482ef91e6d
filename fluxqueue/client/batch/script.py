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
    r"^(?:#(?P<slurm>SBATCH)(?=[\s-])|\s*(?:#|//)\W*(?P<flux>flux|FLUX):)(?P<words>.*)$"
)
"""Any number of marks may stand between the comment's and ``flux:``, as in Flux RFC 36."""
_COMMENTS = ("#", "//")
_OTHER_SYSTEM = re.compile(r"^#(?P<tag>PBS|BSUB)\s")
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
    """A script that was read: ``said`` has the directives by their keys, in order.

    ``is_slurm``: some of its lines are sbatch's.
    """

    command: tuple[str, ...]
    said: Mapping[str, tuple[Said, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    is_slurm: bool = False


def read_script(text: str, name: str) -> Script:
    """Read a script: its directives, and the command that runs it.

    Raises
    ------
    InvalidInput
        A directive is unknown or cannot be met, or the first line is not usable.
    """
    text = _plain(text, name)
    command = interpreter(text, name)
    said: dict[str, tuple[Said, ...]] = {}
    ignored: dict[str, None] = {}
    lines = _directive_lines(text, name)
    for found, where in lines:
        dialect = "slurm" if found["slurm"] else "flux"
        for one, value in _options(found["words"], dialect, where):
            if one.fate is Fate.IGNORED:
                ignored[f"--{one.name}"] = None
                continue
            before = said.get(one.meaning, ()) if one.meaning in LISTS else ()
            said[one.meaning] = (*before, Said(value, where, dialect))
    is_slurm = any(found["slurm"] for found, _ in lines)
    return Script(command, said, tuple(ignored), is_slurm)


def _plain(text: str, name: str) -> str:
    """Return the text as a shell reads it: without a byte order mark and carriage returns."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if len(text.encode()) > SCRIPT_MAX_BYTES:
        raise InvalidInput(
            f"is longer than {SCRIPT_MAX_BYTES} bytes",
            where=name,
            hint="put it into an image or a ConfigMap",
        )
    if "\0" in text:
        raise InvalidInput("has a null character", where=name, hint="use a text file as the script")
    return text


def _directive_lines(text: str, name: str) -> list[tuple[re.Match[str], str]]:
    """Return the lines with directives, each with its place.

    Slurm ignores its lines after the first command, and Flux refuses them. The lines of a third
    system are comments only beside lines of these two.
    """
    found: list[tuple[re.Match[str], str]] = []
    other = ""
    has_begun = False
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        directive = _DIRECTIVE.match(line)
        if directive and not has_begun:
            found.append((directive, where))
        elif directive and directive["flux"] and directive["words"].lstrip().startswith("-"):
            raise InvalidInput(
                "a directive stands after the first command",
                where=where,
                value=line,
                hint="move the line up, above the first command",
            )
        elif line.strip() and not line.lstrip().startswith(_COMMENTS):
            has_begun = True
        elif not has_begun and not other and _OTHER_SYSTEM.match(line):
            other = where
    if other and not found:
        raise InvalidInput(
            "the directives of another system are not read",
            where=other,
            hint="write them as #SBATCH or #FLUX: lines",
        )
    return found


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
    words = first[2:].split()  # as the kernel reads it: quotes have no meaning
    is_env = bool(words) and words[0].endswith("/env")
    programs = [word for word in words[1:] if word[:1] != "-"] if is_env else words
    program = programs[0].rsplit("/", 1)[-1] if programs else ""
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
        raise InvalidInput(
            f"cannot be read: {error}", where=where, value=words,
            hint="close the quotes, and write the directive on one line",
        ) from None  # fmt: skip
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
            raise InvalidInput(
                f"--{one.name} takes no value", where=where, value=word, hint=f"write --{one.name}"
            )
        # As getopt has it, letters without a value may share a dash.
        return one, "", [f"-{value}", *rest] if value else rest
    if value is None and one.argument is Argument.REQUIRED:
        if not rest:
            raise InvalidInput(
                f"{word} needs a value", where=where, value=word, hint=f"--{one.name}=VALUE"
            )
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
