"""Hostlists: ``node[0-3,7],login`` for many names (Flux RFC 29).

Everything that shows or stores a list of nodes in a Flux format calls it. Order, repetitions and
zero padding are kept.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterable, Iterator, Sequence

from fluxqueue.errors import InvalidInput

MAX_HOSTS = 200_000
"""Maximum number of names in one hostlist. More are a typing error, or an attack on memory."""

MAX_BRACKETS = 16
"""Maximum number of brackets in one word. Each bracket is read by one more level of recursion."""

MAX_DIGITS = 18
"""Maximum number of digits read as the number of a name. Digits before belong to the stem."""

_WORD = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_RANGE = re.compile(r"(?P<low>[0-9]{1,18})(?:-(?P<high>[0-9]{1,18}))?")
_FORBIDDEN = re.compile(r"[,\[\]\s]")


def compress(hosts: Iterable[str]) -> str:
    """Write ``hosts`` as one hostlist. Neighbours with a common prefix share a bracket.

    Raises
    ------
    InvalidInput
        A name is empty or has a bracket, comma or space.
    """
    names = list(hosts)
    check_names(names)
    words: list[str] = []
    prefix: str | None = None
    numbers: list[str] = []
    for host in names:
        stem = host.rstrip(string.digits)
        if len(host) - len(stem) > MAX_DIGITS:
            stem = host[:-MAX_DIGITS]
        is_numbered = len(stem) < len(host)
        if prefix is not None and (stem != prefix or not is_numbered):
            words.append(_write_word(prefix, numbers))
            prefix, numbers = None, []
        if is_numbered:
            prefix = stem
            numbers.append(host[len(stem) :])
        else:
            words.append(host)
    if prefix is not None:
        words.append(_write_word(prefix, numbers))
    return ",".join(words)


def is_host(name: str) -> bool:
    """Return whether a name can be in a hostlist. A damaged row may hold another one."""
    return bool(name) and not _FORBIDDEN.search(name)


def check_names(names: Collection[str]) -> None:
    """Refuse names that cannot be in a hostlist. Raises ``InvalidInput``."""
    # One search over all names joined: this runs for every R that is written.
    if not all(names) or _FORBIDDEN.search("".join(names)):
        host = next(name for name in names if not name or _FORBIDDEN.search(name))
        raise InvalidInput(f"{host!r} is not valid in a hostlist", where="host", value=host)


def _write_word(prefix: str, numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return prefix + numbers[0]
    runs: list[list[str]] = []
    for digits in numbers:
        if runs and digits == _next(runs[-1]):
            runs[-1].append(digits)
        else:
            runs.append([digits])
    parts = (run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"{prefix}[{','.join(parts)}]"


def _next(run: Sequence[str]) -> str:
    # Use the padding of the first number of the run, as expand() will.
    return str(int(run[-1]) + 1).zfill(len(run[0]))


def expand(text: str, *, most: int = MAX_HOSTS) -> list[str]:
    """Read a hostlist into names. ``""`` is the empty list. A word may have brackets anywhere.

    Raises
    ------
    InvalidInput
        A bracket does not close, a range is not valid, or there are more than ``most`` names.
    """
    hosts: list[str] = []
    for word in _split(text):
        for host in _expand_word(word):
            hosts.append(host)
            if len(hosts) > most:
                raise _refuse(text[:80], f"has more than {most} names")
    return hosts


def _split(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            raise _refuse(text, f"cannot be read at character {position}")
        yield match[0]
        position = match.end()
        if position < len(text):
            if text[position] != "," or position + 1 == len(text):
                raise _refuse(text, f"cannot be read at character {position}")
            position += 1


def _expand_word(word: str) -> Iterator[str]:
    if word.count("[") > MAX_BRACKETS:
        raise _refuse(word[:80], f"has more than {MAX_BRACKETS} brackets in one word")
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inside, _, after = rest.partition("]")
    for number in _numbers(inside, word):
        for tail in _expand_word(after) if after else ("",):
            yield f"{before}{number}{tail}"


def _numbers(inside: str, word: str) -> Iterator[str]:
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _refuse(word, f"has no number or range in {part!r}")
        low, high = int(match["low"]), int(match["high"] or match["low"])
        if high < low:
            raise _refuse(word, f"has the range {part} backwards")
        if high - low >= MAX_HOSTS:
            raise _refuse(word, f"has more than {MAX_HOSTS} names")
        width = len(match["low"])
        for number in range(low, high + 1):
            yield str(number).zfill(width)


def _refuse(text: str, what: str) -> InvalidInput:
    return InvalidInput(
        f"hostlist {text!r} {what}", where="hostlist", value=text, hint="such as node[0-3,7],login"
    )
