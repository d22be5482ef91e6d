"""Read a batch script: its directives, such as ``#SBATCH`` lines, and the command that runs it.

Pure: text in, ``Script`` out. The lines are read as a whole. ``script_request`` translates them
together, because ``-N 2 -n 8`` means the same in any order. ``directives`` has the options.
Lines after the first command are not directives, and ``# SBATCH`` is a comment, as in Slurm.
Directives of a system that is not known are refused, so that no job runs with one cpu in silence.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.client.batch.dialects import BEGINNINGS, DIALECTS, UNKNOWN
from fluxqueue.client.batch.directives import Argument, Directive, Fate, by_long, by_short
from fluxqueue.errors import InvalidInput

SCRIPT_MAX_BYTES = 100_000
"""One argument of a process may have 128 KiB (MAX_ARG_STRLEN of Linux)."""

_COMMENTS = ("#", "//")
_MISTYPED = re.compile(r"^#(?:SBATCH[^\s-]|SLURM\s+-)")
"""Slurm refuses the first, and obeys the second with a complaint."""
_VARIABLES = {
    "SBATCH_ARRAY_INX": "array",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_MEM_PER_NODE": "mem",
}
"""Variables of sbatch that are not named after their option."""
_GUESTS = frozenset({"pbs", "lsf"})
"""Systems whose lines Slurm reads, too."""
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

    ``text``: all of it. Empty for a command that is not a script. ``system``: the batch system of
    its directives, and so of the variables that it finds. Without any it is Slurm.
    """

    command: tuple[str, ...]
    said: Mapping[str, tuple[Said, ...]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    system: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class WholeHeader:
    """The directives, with short ways to read them. Of several with one key the last counts."""

    said: Mapping[str, tuple[Said, ...]]

    def has(self, key: str) -> bool:
        """Return whether there is one with this key."""
        return key in self.said

    def last(self, key: str) -> Said | None:
        """Return it, or None."""
        return self.said[key][-1] if key in self.said else None

    def text(self, key: str) -> str:
        """Return its value, or an empty text."""
        found = self.last(key)
        return "" if found is None else found.value

    def read(self, key: str, read: Callable[[str, str], Any], default: Any) -> Any:
        """Return what ``read`` makes of its value and place, or the default."""
        found = self.last(key)
        return default if found is None else read(found.value, found.where)

    def only_one_of(self, *keys: str) -> None:
        """Raise InvalidInput if there are several of these."""
        found = [key for key in keys if key in self.said]
        if len(found) > 1:
            listed = " and ".join(f"--{key}" for key in found)
            raise InvalidInput(
                f"{listed} contradict each other",
                where=self.said[found[-1]][-1].where,
                hint="take one of the two away",
            )


def read_script(text: str, name: str, ignore: Collection[str] = ()) -> Script:
    """Read a script: its directives, and the command that runs it.

    ``ignore``: names of options that the site ignores, without their dashes.

    Raises
    ------
    InvalidInput
        A directive is unknown or cannot be met, or the first line is not usable.
    """
    text = _plain(text, name)
    command = interpreter(text, name)
    lines = _directive_lines(text, name)
    systems = list(dict.fromkeys(system for system, _, _ in lines))
    own = [one for one in lines if one[0] not in _GUESTS]
    said, ignored = _read_lines(own or lines, ignore)
    if own and len(own) < len(lines) and "ignore-pbs" not in said:
        try:
            said, ignored = _read_lines(lines, ignore)
        except InvalidInput as error:
            raise InvalidInput(
                f"{error.message} (Slurm reads this line, too)", where=error.where,
                value=error.value, hint="take the line away, or write #SBATCH --ignore-pbs",
            ) from None  # fmt: skip
    # sbatch takes a script without any of its lines, too.
    system = "slurm" if "slurm" in systems else next(iter(systems), "slurm")
    return Script(command, said, ignored, system, text)


def _read_lines(
    lines: Sequence[tuple[str, str, str]], ignore: Collection[str]
) -> tuple[dict[str, tuple[Said, ...]], tuple[str, ...]]:
    """Return the directives of these lines by their keys, and those that are ignored."""
    said: dict[str, tuple[Said, ...]] = {}
    ignored: dict[str, None] = {}
    for system, words, where in lines:
        for one, value in _options(words, _Dialect(system, ignore), where):
            if one.fate is Fate.IGNORED:
                ignored[one.spelled] = None
                continue
            meant = [(one.meaning, value)] if one.reads is None else one.reads(value, where)
            for key, text in meant:
                before = said.get(key, ()) if key in LISTS else ()
                said[key] = (*before, Said(text, where, "flux" if system == "flux" else "slurm"))
    return said, tuple(ignored)


def with_variables(script: Script, environ: Mapping[str, str]) -> Script:
    """Return a script of Slurm with what ``SBATCH_*`` variables say. They win over its lines."""
    found = dict(script.said)
    for name, value in environ.items():
        if not name.startswith("SBATCH_"):
            continue
        word = _VARIABLES.get(name, name.removeprefix("SBATCH_").lower().replace("_", "-"))
        known = [one for one in DIALECTS["slurm"] if one.name == word]
        if known and known[0].fate is not Fate.IGNORED:
            one, _ = _find(f"--{word}", _Dialect("slurm"), name)
            _check(one, f"--{word}", name)
            value = "" if one.argument is Argument.NONE else value
            found[one.meaning] = (Said(value, name),)
    return replace(script, said=found)


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


def _directive_lines(text: str, name: str) -> list[tuple[str, str, str]]:
    """Return the system, the words and the place of each line with directives.

    Slurm ignores its lines after the first command, and Flux refuses them. Lines for PBS and LSF
    count after those for Slurm, as there. Beside lines that are read, those of a system that is not
    known are comments.
    """
    found: list[tuple[str, str, str]] = []
    other: tuple[str, str] | None = None
    has_begun = False
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{name}:{number}"
        begun = ((one, begins.match(line)) for one, begins in BEGINNINGS.items())
        system, directive = next(((one, it) for one, it in begun if it), ("", None))
        if directive and not has_begun:
            found.append((system, directive["words"], where))
        elif directive and system == "flux" and directive["words"].lstrip().startswith("-"):
            raise InvalidInput(
                "a directive stands after the first command",
                where=where,
                value=line,
                hint="move the line up, above the first command",
            )
        elif line.strip() and not line.lstrip().startswith(_COMMENTS):
            has_begun = True
        elif not has_begun and _MISTYPED.match(line):
            raise InvalidInput(
                "is no directive of Slurm", where=where, value=line,
                hint="write #SBATCH and a space",
            )  # fmt: skip
        elif not has_begun and other is None:
            systems = (one for one, begins in UNKNOWN.items() if begins.match(line))
            other = next(((where, one) for one in systems), None)
    if other is not None and not found:
        raise InvalidInput(
            f"directives of {other[1]} are not read",
            where=other[0],
            hint="write them as #SBATCH or #FLUX: lines",
        )
    return sorted(found, key=lambda one: one[0] in _GUESTS)


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


@dataclass(frozen=True, slots=True)
class _Dialect:
    """A system's options, and the names of those that the site ignores."""

    name: str
    ignore: Collection[str] = ()

    def ignored(self, name: str) -> Directive | None:
        """Return an option that the site ignores: one that is known, or a plugin's."""
        if name not in self.ignore:
            return None
        known = by_long(DIALECTS[self.name], name)
        argument = known[0].argument if len(known) == 1 else Argument.OPTIONAL
        return Directive(name, Fate.IGNORED, "ignored by the site", argument=argument)


def _options(words: str, dialect: _Dialect, where: str) -> list[tuple[Directive, str]]:
    """Return the options of one line with their values."""
    try:
        # Slurm reads on behind a backslash at the end of a line, but not in the next line.
        rest = shlex.split(words.rstrip().removesuffix("\\"), comments=True)
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


def _next(words: list[str], dialect: _Dialect, where: str) -> tuple[Directive, str, list[str]]:
    """Return the first option with its value, and the words after it."""
    word, rest = words[0], words[1:]
    one, value = _find(word, dialect, where)
    _check(one, word, where)
    if one.argument is Argument.NONE:
        if value is not None and word.startswith("--"):
            raise InvalidInput(
                f"{one.spelled} takes no value",
                where=where,
                value=word,
                hint=f"write {one.spelled}",
            )
        # As getopt has it, letters without a value may share a dash.
        return one, "", [f"-{value}", *rest] if value else rest
    if value is None and one.argument is Argument.REQUIRED:
        if not rest:
            raise InvalidInput(
                f"{word} needs a value", where=where, value=word, hint=f"{one.spelled} VALUE"
            )
        value, rest = rest[0], rest[1:]
    return one, value or "", rest


def _check(one: Directive, word: str, where: str) -> None:
    if one.fate is Fate.REFUSED:
        raise InvalidInput(
            f"{word} cannot be kept on this cluster", where=where, value=word, hint=one.text
        )


def _find(word: str, dialect: _Dialect, where: str) -> tuple[Directive, str | None]:
    """Return the option that ``word`` names, and the value within the word."""
    table = DIALECTS[dialect.name]
    if word in _SEVERAL_JOBS and dialect.name == "slurm":
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
        ignored = dialect.ignored(name)
        candidates = by_long(table, name) if ignored is None else (ignored,)
    elif word.startswith("-") and len(word) > 1:
        candidates = [one for one in table if one.name == word[1:] and dialect.name == "lsf"]
        letter = by_short(table, word[1])
        if not candidates and letter is not None:
            candidates, value = (letter,), word[2:].removeprefix("=") or None
    if len(candidates) == 1:
        return candidates[0], value
    listed = candidates or [one for one in table if one.fate is Fate.TRANSLATED]
    known = ", ".join(sorted(one.spelled for one in listed))
    problem = "is short for several directives" if candidates else "is not a known directive"
    raise InvalidInput(f"{word!r} {problem}", where=where, value=word, hint=known)
