"""How long the command of a simulated pod says that it takes. Pure.

``pod_simulation`` calls it. A simulated pod starts no program, but ``sleep 60`` says its time. A
shell script counts with the sum of its ``sleep`` commands. Loops and branches are not followed.
"""

from __future__ import annotations

import re
from math import inf
from pathlib import PurePosixPath

from localcluster.obj import Obj

SHELLS = frozenset({"sh", "bash", "ash", "dash", "zsh", "ksh"})
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)([smhd]?)")
_IN_SCRIPT = re.compile(
    r"(?:^|[\s;&|(])(?:/bin/|/usr/bin/)?sleep((?:[ \t]+[\d.]+[smhd]?|[ \t]+infinity)+)"
)


def command_duration_s(pod: Obj) -> float | None:
    """Return the seconds that the commands of a pod sleep, ``inf`` for ever.

    The slowest container counts. None if no container sleeps.
    """
    found = [_container_s(one) for one in pod["spec"]["containers"]]
    return max((one for one in found if one is not None), default=None)


def _container_s(container: Obj) -> float | None:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if not words:
        return None
    program = PurePosixPath(words[0]).name
    if program == "sleep":
        return _sum_s(words[1:])
    if program not in SHELLS:
        return None
    found = [_sum_s(one.split()) for text in words[1:] for one in _IN_SCRIPT.findall(text)]
    times = [one for one in found if one is not None]
    return sum(times) if times else None


def _sum_s(words: list[str]) -> float | None:
    """Add the operands of one ``sleep``, as coreutils does. None if one of them is not a time."""
    total_s = 0.0
    for word in words:
        match = _TIME.fullmatch(word)
        if word not in {"infinity", "inf"} and match is None:
            return None
        total_s += inf if match is None else float(match[1]) * SECONDS[match[2]]
    return total_s if words else None
