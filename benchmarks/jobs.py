"""``make bench-jobs``: what a user's commands take over 50,000 FluxJobs, as a table.

Each is a process of its own against an embedded API server that is full: from its start to its
first line and to its end, and its memory at most. The first line of ``jobs`` has a goal; whatever
shows all of them takes as long as the server needs to list them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import filled
from benchmarks.line import Line

GOAL_S, GOAL_MIB = 1.0, 200
COMMANDS = (
    ("version", ["version"], GOAL_S),
    ("jobs -A", ["jobs", "-A"], GOAL_S),
    ("jobs -A --limit 50", ["jobs", "-A", "--limit", "50"], GOAL_S),
    ("jobs of one namespace", ["jobs", "-n", "team-7"], GOAL_S),
    ("jobs -A --sort -age", ["jobs", "-A", "--sort", "-age"], None),
    ("jobs -A -o json", ["jobs", "-A", "-o", "json"], GOAL_S),
    ("jobs -A -o name", ["jobs", "-A", "-o", "name"], GOAL_S),
    ("wait job-7 --timeout 1s", ["wait", "job-7", "-n", "team-7", "--timeout", "1s"], None),
    ("queues", ["queues"], None),
    ("tree", ["tree"], None),
)
WATCHED = ("jobs -A --watch", ["jobs", "-A", "--watch"])


def run(
    words: list[str], kubeconfig: Path, *, is_endless: bool = False
) -> tuple[float, float, float]:
    """Seconds to the first line and to the end, and MiB at most."""
    command = [sys.executable, "-m", "fluxqueue", *words]
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONDONTWRITEBYTECODE": ""}
    began_s = time.perf_counter()
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.readline()
    first_s = time.perf_counter() - began_s
    if is_endless:
        process.kill()
    while process.stdout.read(1 << 20):
        pass
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return first_s, time.perf_counter() - began_s, usage.ru_maxrss / 1024


def _tell(what: str, figures: tuple[float, float, float], goal_s: float | None) -> None:
    first_s, whole_s, peak = figures
    for line in (
        Line(f"{what}: first line", first_s, "s", goal_s, is_more_better=False),
        Line(f"{what}: to its end", whole_s, "s"),
        Line(f"{what}: memory at most", peak, "MiB", GOAL_MIB, is_more_better=False),
    ):
        print(line.render(2), flush=True)


async def _measure(folder: Path, number: int) -> None:
    kubeconfig = folder / "kubeconfig"
    async with filled.filled_server(number, kubeconfig):
        await asyncio.to_thread(run, ["version"], kubeconfig)  # byte code, once
        for what, words, goal_s in COMMANDS:
            _tell(what, await asyncio.to_thread(run, words, kubeconfig), goal_s)
        what, words = WATCHED
        _tell(what, await asyncio.to_thread(run, words, kubeconfig, is_endless=True), None)


def main() -> None:
    """Fill a server, and type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder), arguments.jobs))


if __name__ == "__main__":
    main()
