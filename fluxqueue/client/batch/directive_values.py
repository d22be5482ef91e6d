"""Read the values of directives: numbers, sizes, times, lists. One function for each form.

``script_request`` and ``job_options`` call it. Pure. Each error names the directive, the value and
what is valid.
"""

from __future__ import annotations

import re

from fluxqueue.errors import InvalidInput

ARRAY_MAX = 100_000
"""Largest number of tasks of an array. An Indexed Job with more is refused by Kubernetes."""
_LONE_DEPENDENCIES = frozenset({"singleton", "afterok", "afterany", "afternotok", "after"})
SINGLETON = re.compile(r"\bsingleton:(?![^,\s])")
"""The dependency of a singleton without the name that it shares (``job_manifest``)."""
_NO_LIMIT = frozenset({"unlimited", "infinite", "inf", "infinity"})
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024, "P": 1024**3}


def count_of(text: str, where: str) -> tuple[str, int]:
    """Read ``2``, ``a100:2`` or ``a100``: a type and a number."""
    kind, _, count = text.rpartition(":")
    if not kind and not count.isdigit():
        kind, count = count, "1"
    if not (count.isascii() and count.isdigit() and len(count) < 7):
        raise InvalidInput(
            f"{text!r} is not a number of devices", where=where, value=text, hint="2, a100:2"
        )
    return kind, int(count)


def folder(text: str, where: str) -> str:
    """Return a folder of the container. A relative one would be below your own folder."""
    if not text.startswith("/"):
        raise InvalidInput(
            f"{text!r} is not a folder of the image",
            where=where,
            value=text,
            hint="use a path from the root, such as /work, or leave the line out",
        )
    return text


def dependency(text: str, where: str) -> str:
    """Return the annotation for sbatch's ``--dependency``.

    A job without a type is ``afterany``. ``aftercorr`` becomes ``afterok``, which waits for more.
    ``singleton`` has no name yet.
    """
    text = ",".join(map(_dependency, text.split(",")))
    if "?" in text:
        raise InvalidInput(
            "one of several dependencies cannot be enough: ? is not supported",
            where=where,
            value=text,
            hint="use commas: all of them must be satisfied",
        )
    for word in text.split(","):
        kind, _, rest = word.partition(":")
        hint = ""
        if kind in {"expand", "afterburstbuffer", "fluid", "string", "in", "out", "inout"}:
            hint = "use afterok, afterany, afternotok or after"
        elif "+" in rest:
            hint = "use after:NAME without a delay, and --begin"
        elif "_" in rest:
            hint = "use the name or jobid of the array: it waits for the whole array"
        if hint:
            raise InvalidInput(f"{word!r} cannot be kept", where=where, value=text, hint=hint)
    from fluxqueue.workload.starting import parse_depends_on

    parse_depends_on(SINGLETON.sub("singleton:name", text), where)
    return text


def _dependency(word: str) -> str:
    kind, colon, rest = word.partition(":")
    if not colon and kind and kind.lower() not in _LONE_DEPENDENCIES:
        return f"afterany:{kind}"
    kind = kind.lower()
    if word.lower() == "singleton":
        return "singleton:"
    return f"{'afterok' if kind == 'aftercorr' else kind}{colon}{rest}"


def read_array(text: str, where: str) -> tuple[tuple[int, ...], int]:
    """Read ``0-15``, ``1,3,5-9:2`` with ``%N``: indexes, and how many run at once (0: all).

    Ranges may overlap, as in Slurm.

    Raises
    ------
    InvalidInput
        It is not an array, or is too large.
    """
    spec, _, most = text.partition("%")
    found: set[int] = set()
    for part in spec.strip("[]").removesuffix(",").split(","):
        one = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part.strip())
        step = int(one[3] or 1) if one else 0
        if one is None or not step or int(one[2] or one[1]) < int(one[1]):
            raise _no_array(text, where)
        numbers = range(int(one[1]), int(one[2] or one[1]) + 1, step)
        if len(found) + len(numbers) > ARRAY_MAX:
            raise InvalidInput(
                f"has more than {ARRAY_MAX} tasks", where=where, value=text, hint="use several jobs"
            )
        found.update(numbers)
    if not re.fullmatch(r"\d{0,7}", most):
        raise _no_array(text, where)
    return tuple(sorted(found)), int(most or 0)


def _no_array(text: str, where: str) -> InvalidInput:
    return InvalidInput(
        f"{text!r} is not an array", where=where, value=text, hint="0-15, 1,3,7, 0-15:4, 0-99%4"
    )


def pair(text: str, where: str) -> tuple[str, str]:
    """Read ``NAME=VALUE``. Raises InvalidInput."""
    name, is_pair, value = text.partition("=")
    if not is_pair or not re.fullmatch(r"[A-Za-z_][\w.-]*", name):
        raise InvalidInput(
            f"{text!r} is not NAME=VALUE", where=where, value=text, hint="such as MODE=fast"
        )
    return name, value


def number(text: str, where: str) -> int:
    """Read a number from 1 to 99,999. Raises InvalidInput."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) > 0):
        raise InvalidInput(
            f"{text!r} is not a positive number", where=where, value=text, hint="from 1 to 99999"
        )
    return int(text)


def mebibytes(text: str, where: str) -> int:
    """Read Slurm's amount of memory, in MiB without a unit, rounded up to MiB.

    Raises
    ------
    InvalidInput
        It is not an amount.
    """
    found = re.fullmatch(r"(\d{1,12})([KMGTP]?)(?:I?B?)", text.upper())
    if not found:
        raise InvalidInput(
            f"{text!r} is not an amount of memory", where=where, value=text, hint="512M, 4G, 4Gi"
        )
    amount = int(found[1])
    return -(-amount // 1024) if found[2] == "K" else int(amount * _MIB[found[2] or "M"])


def in_mebibytes(amount: int) -> str:
    """Return a quantity in the largest unit that is exact."""
    return f"{amount // 1024}Gi" if amount and amount % 1024 == 0 else f"{amount}Mi"


def duration(text: str, option: str, where: str) -> str:
    """Return a run time as ``fluxqueue/duration`` takes it, or "" for no limit.

    Slurm writes minutes, ``MM:SS``, ``HH:MM:SS`` or ``D-HH[:MM[:SS]]``, and 0 or UNLIMITED. Flux
    writes ``90s``, ``2.5h``, and minutes without a unit. Both are accepted in both dialects.

    Raises
    ------
    InvalidInput
        It is none of these.
    """
    if text.lower() in _NO_LIMIT:
        return ""
    seconds = _slurm_seconds(text)
    if seconds is not None:
        return f"{seconds}s" if seconds else ""
    if re.fullmatch(r"0+(?:\.0+)?(?:ms|[smhd])?", text):
        return ""
    if re.fullmatch(r"\d{1,9}\.\d{1,9}", text):
        text += "m"
    if re.fullmatch(r"[\d.dhms]{1,40}[dhms]", text):
        from fluxqueue.workload.annotations import parse_duration

        return f"{parse_duration(text, where)}s"
    raise InvalidInput(
        f"{text!r} is not a duration",
        where=f"{where} --{option}",
        hint="30, 1:30:00, 2-12, 90s, 2h30m, UNLIMITED",
    )


def _slurm_seconds(text: str) -> int | None:
    """Return the seconds of Slurm's notation, or None."""
    days, dash, clock = text.rpartition("-")
    parts = clock.split(":")
    words = (*parts, days or "0")
    if bool(days) != bool(dash) or len(parts) > 3:
        return None
    if not all(part.isascii() and part.isdigit() and len(part) < 8 for part in words):
        return None
    numbers = [int(part) for part in parts]
    if days:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
