"""One replay in a process of its own: ``python -m fluxqueue.simulation.answering``.

The view server starts it for each replay of the window. It reads a question as JSON from standard
input, limits itself, and writes the answer as JSON. It has no database, no cluster and no secret.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from fluxqueue.errors import FluxQueueError, InvalidInput
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Level
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.comparison import to_json
from fluxqueue.simulation.recorded_day import parse_day
from fluxqueue.simulation.replay import as_recorded, replay
from fluxqueue.simulation.swf import from_day, render
from fluxqueue.simulation.what_changes import parse_changes


def limit_itself(*, cpu_s: int, memory_bytes: int) -> None:
    """Let everything else on the machine go first, and bound time and further memory."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    # The address space of the loaded programs does not count: most of it is never used.
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the comparison, ``swf`` with the record as a workload log, or ``refused``.

    ``question`` has ``day`` (as ``db.reading.recorded_days`` reads it), ``policy``, ``nodes`` and
    ``weights`` (as ``what_changes.parse_changes`` takes them), and the settings of the cluster.
    ``isLog`` asks for the log.
    """
    try:
        changes = parse_changes(question["policy"], question["nodes"], question["weights"])
        day = parse_day(question["day"], "history")
        if question.get("isLog"):
            return {"swf": render(from_day(day))}
        settings = question["settings"]
        levels = tuple(Level(name, tuple(labels)) for name, labels in settings["levels"])
        made = replay(
            day,
            queue_policy(settings["queuePolicy"], queue_depth=settings["queueDepth"]),
            changes,
            match_policy=settings["matchPolicy"],
            levels=levels or DEFAULT_LEVELS,
        )
        return to_json(day, as_recorded(day), made, levels, changes.describe())
    except FluxQueueError as error:
        return {"refused": str(error)}
    except MemoryError:
        refused = InvalidInput(
            "this time has too many jobs for the memory of the view server",
            where="until",
            hint="replay a shorter time, or use fluxqueue sim",
        )
        return {"refused": str(refused)}


def main() -> None:
    """Read, answer, write."""
    cpu_s, memory_bytes = (int(one) for one in sys.argv[1:3])
    limit_itself(cpu_s=cpu_s, memory_bytes=memory_bytes)
    sys.stdout.buffer.write(orjson.dumps(answer(orjson.loads(sys.stdin.buffer.read()))))


if __name__ == "__main__":
    main()
