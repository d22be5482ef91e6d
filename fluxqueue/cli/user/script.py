"""Read a batch script: its ``#FLUX:`` and ``#SBATCH`` lines as one ``ScriptRequest``.

Pure: text in, ``ScriptRequest`` out. A directive without a meaning here (``--mail-user``) is listed
in ``ScriptRequest.ignored``. A directive that is unknown or cannot be met is refused with its line.
Flux's words are those of RFC 36 (``#FLUX: -N2``, ``# flux: --queue=batch``), Slurm's those of
sbatch(1).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import InvalidInput

SCRIPT_MAX_BYTES = 100_000
"""One argument of a process may have 128 KiB (MAX_ARG_STRLEN of Linux)."""

_DIRECTIVE = re.compile(r"^#\s?(?:(?P<slurm>SBATCH)\s|(?i:(?P<flux>flux):))\s*(?P<words>.*)$")
_BY_C = re.compile(r"^(?:ba|da|z|k)?sh$|^python[0-9.]*$")
_BY_E = frozenset({"perl", "ruby", "node"})


@dataclass(frozen=True)
class ScriptRequest:
    """What to submit. Empty fields are left to the cluster."""

    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    tasks: int = 1
    cpus: str = "1"
    memory: str = ""
    gpus: int = 0
    duration: str = ""
    queue: str = ""
    priority: str = ""
    depends_on: str = ""
    begin: str = ""
    within: str = ""
    folder: str = ""
    is_held: bool = False
    is_exclusive: bool = False
    is_spread: bool = False
    array: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    ignored: tuple[str, ...] = field(default=())


_FLAGS = {"exclusive": "is_exclusive", "hold": "is_held", "spread": "is_spread"}
_VALUES = {
    "job-name": "name", "name": "name", "image": "image", "ntasks": "tasks", "nslots": "tasks",
    "cpus-per-task": "cpus", "cores-per-slot": "cpus", "mem": "memory", "gpus-per-task": "gpus",
    "gpus-per-slot": "gpus", "gres": "gpus", "time": "duration", "time-limit": "duration",
    "partition": "queue", "queue": "queue", "priority": "priority", "urgency": "priority",
    "dependency": "depends_on", "begin": "begin", "begin-time": "begin", "within": "within",
    "chdir": "folder", "cwd": "folder", "array": "array", "nodes": "nodes", "env": "environment",
    "mem-per-cpu": "mem-per-cpu",
}  # fmt: skip
_IGNORED = frozenset(
    {"output", "error", "mail-type", "mail-user", "account", "bank", "comment", "qos", "export",
     "open-mode", "signal", "requeue", "no-requeue", "unbuffered", "verbose", "setattr", "label-io",
     "ntasks-per-node", "constraint", "reservation"}
)  # fmt: skip
_BARE = frozenset({"requeue", "no-requeue", "unbuffered", "verbose", "label-io"})
_SHORT = {
    "slurm": {
        "J": "job-name", "n": "ntasks", "c": "cpus-per-task", "t": "time", "p": "partition",
        "N": "nodes", "d": "dependency", "b": "begin", "D": "chdir", "a": "array", "H": "hold",
        "o": "output", "e": "error", "A": "account", "C": "constraint", "q": "qos", "G": "gres",
    },
    "flux": {
        "n": "nslots", "c": "cores-per-slot", "g": "gpus-per-slot", "t": "time-limit",
        "q": "queue", "N": "nodes", "x": "exclusive", "o": "output", "B": "bank", "S": "setattr",
    },
}  # fmt: skip


def read_script(text: str, name: str) -> ScriptRequest:
    """Read a script: its directives, and the command that runs it.

    Raises
    ------
    InvalidInput
        A directive is unknown or has an invalid value, or the first line is not usable.
    """
    if len(text.encode()) > SCRIPT_MAX_BYTES:
        raise InvalidInput(
            f"is longer than {SCRIPT_MAX_BYTES} bytes",
            where=name,
            hint="put it into an image or a ConfigMap",
        )
    request = ScriptRequest(command=interpreter(text, name))
    for number, line in enumerate(text.splitlines(), 1):
        found = _DIRECTIVE.match(line)
        if found:
            dialect = "slurm" if found["slurm"] else "flux"
            request = _apply(request, found["words"], dialect, f"{name}:{number}")
        elif line.strip() and not line.startswith("#"):
            break  # as in Slurm: lines after the first command are not directives
    return request


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


def _apply(request: ScriptRequest, words: str, dialect: str, where: str) -> ScriptRequest:
    try:
        rest = shlex.split(words, comments=True)
    except ValueError as error:
        raise InvalidInput(f"cannot be read: {error}", where=where) from None
    while rest:
        option, value, rest = _next(rest, dialect, where)
        request = _set(request, option, value, where)
    return request


def _next(words: list[str], dialect: str, where: str) -> tuple[str, str, list[str]]:
    """Return the first option with its value, and the words after it."""
    word, rest = words[0], words[1:]
    value: str | None = None
    if word.startswith("--"):
        option, has_value, text = word[2:].partition("=")
        value = text if has_value else None
    elif word.startswith("-") and len(word) > 1:
        option = _SHORT[dialect].get(word[1], "")
        value = word[2:].removeprefix("=") or None
    else:
        option = ""
    if option not in {*_FLAGS, *_VALUES, *_IGNORED}:
        known = ", ".join(sorted({*_FLAGS, *_VALUES}))
        raise InvalidInput(
            f"{word!r} is not a known directive", where=where, value=word, hint=known
        )
    if value is None and option not in {*_FLAGS, *_BARE}:
        if not rest:
            raise InvalidInput(f"{word} needs a value", where=where)
        value, rest = rest[0], rest[1:]
    return option, value or "", rest


def _set(request: ScriptRequest, option: str, value: str, where: str) -> ScriptRequest:
    if option in _IGNORED:
        return replace(request, ignored=(*request.ignored, f"--{option}"))
    if option in _FLAGS:
        changes: dict[str, Any] = {_FLAGS[option]: True}
        return replace(request, **changes)
    target = _VALUES[option]
    if target == "nodes":
        # That many nodes with one task each, if no directive gives the number of tasks.
        nodes = _number(value.partition("-")[0], where)
        tasks = max(request.tasks, nodes)
        return replace(request, tasks=tasks, is_spread=tasks == nodes)
    if target == "mem-per-cpu":
        amount = re.fullmatch(r"(\d+)([KMGT]?)B?", value)
        if not amount or not request.cpus.isdigit():
            raise InvalidInput(f"{value!r} is not an amount", where=where, hint="such as 4G")
        return replace(
            request, memory=_memory(f"{int(amount[1]) * int(request.cpus)}{amount[2]}", where)
        )
    return replace(request, **{target: _value(option, target, value, request, where)})


def _value(option: str, target: str, value: str, request: ScriptRequest, where: str) -> Any:
    if target == "tasks":
        return _number(value, where)
    if target == "gpus":
        return _number(value.rsplit(":", 1)[-1], where)
    if target == "array":
        found = re.fullmatch(r"0-(\d+)(?:%(\d+))?", value)
        if not found:
            raise InvalidInput(f"{value!r} is not an array", where=where, hint="write 0-N")
        return int(found[1]) + 1
    if target == "memory":
        return _memory(value, where)
    if target == "duration":
        return duration(value, option, where)
    if target == "environment":
        return (*request.environment, pair(value, where))
    return value


def pair(text: str, where: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``. Raises InvalidInput."""
    name, is_pair, value = text.partition("=")
    if not is_pair or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise InvalidInput(f"{text!r} is not NAME=VALUE", where=where, value=text)
    return name, value


def _number(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidInput(f"{text!r} is not a positive number", where=where, value=text)
    return int(text)


def _memory(text: str, where: str) -> str:
    """Return a quantity for Slurm's amounts, in MiB without a unit. A quantity stays as it is."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?(i?)", text)
    if not found:
        raise InvalidInput(
            f"{text!r} is not an amount of memory", where=where, hint="512M, 4G, 4Gi"
        )
    return f"{found[1]}{found[2] or 'M'}i"


def duration(text: str, option: str, where: str) -> str:
    """Return a run time as ``fluxqueue/duration`` takes it.

    Slurm writes minutes, ``MM:SS``, ``HH:MM:SS`` or ``D-HH[:MM[:SS]]``. Flux writes ``90s``,
    ``2.5h``, and minutes without a unit. Both are accepted in both dialects.

    Raises
    ------
    InvalidInput
        It is none of these.
    """
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    if bool(days) == bool(dash) and all(
        part.isascii() and part.isdigit() for part in (*parts, days or "0")
    ):
        numbers = [int(part) for part in parts]
        if days:
            hours, minutes, seconds = (*numbers, 0, 0)[:3]
        elif len(numbers) == 3:
            hours, minutes, seconds = numbers
        else:
            hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
        if len(numbers) <= 3:
            return f"{int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds}s"
    if found := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        unit = {"s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]
        return f"{round(float(found[1]) * unit)}s"
    if re.fullmatch(r"(\d+d)?(\d+h)?(\d+m)?(\d+s)?", text) and text:
        return text
    raise InvalidInput(
        f"{text!r} is not a duration",
        where=f"{where} --{option}",
        hint="30, 1:30:00, 2-12, 90s, 2h30m",
    )
