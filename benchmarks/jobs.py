"""``make bench-jobs``: what a user's commands take over 50,000 FluxJobs, as a table.

Each is a process of its own against an embedded API server that is full: from its start to its
first line and to its end, and its memory at most. The first line of ``jobs`` has a goal. So have
the completion with TAB and the first picture of ``top``. Commands that show all of them take as
long as the server needs to list them. ``--only top,tree`` measures those alone.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import filled
from benchmarks.line import Line
from benchmarks.under_way import under_way

GOAL_S, GOAL_MIB = 1.0, 200
ROWS, COLUMNS = 50, 160
KUBECTL_COMPLETE = "from fluxqueue.cli.kubectl_completion import for_kubectl; for_kubectl()"
COMMANDS: tuple[tuple[str, list[str], float | None], ...] = (
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
TYPED = (
    ("TAB after `hold -n team-7 job-`", ["hold", "-n", "team-7", "job-"]),
    ("TAB after `hold -n team-7 job-998`", ["hold", "-n", "team-7", "job-998"]),
)
"""Of the second, the names come late in the server's order."""


def _environ(kubeconfig: Path) -> dict[str, str]:
    return {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONDONTWRITEBYTECODE": ""}


def run(
    words: list[str], kubeconfig: Path, *, is_endless: bool = False, program: tuple[str, ...] = ()
) -> tuple[float, float, float]:
    """Seconds to the first line and to the end, and MiB at most."""
    command = [sys.executable, *(program or ("-m", "fluxqueue")), *words]
    environ = _environ(kubeconfig)
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


def watch_top(kubeconfig: Path, number: int) -> tuple[float, float, float, float]:
    """``top -A`` in a terminal: seconds until jobs are on it, and until all are counted.

    Then MiB at most, and the share of a processor that it takes while nothing changes.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environ = {**_environ(kubeconfig), "TERM": "xterm-256color"}
    began_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "fluxqueue", "top", "-A"],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    seen = b""

    def until(is_so: Callable[[bytes], bool]) -> float:
        nonlocal seen
        while not is_so(seen):
            seen = seen[-(1 << 16) :] + os.read(ours, 1 << 16)
        return time.perf_counter() - began_s

    first_s = until(lambda text: b"job-" in text)
    whole_s = until(lambda text: f"{number} jobs".encode() in text)
    before, span_s = _processor_s(process.pid), 5.0
    end_s = time.perf_counter() + span_s
    until(lambda _: time.perf_counter() > end_s)
    share = (_processor_s(process.pid) - before) / span_s
    os.write(ours, b"q")
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    os.close(ours)
    return first_s, whole_s, usage.ru_maxrss / 1024, share


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tell_top(kubeconfig: Path, number: int) -> None:
    first_s, whole_s, peak, share = watch_top(kubeconfig, number)
    for line in (
        Line("top -A: first picture with jobs", first_s, "s", 2 * GOAL_S, is_more_better=False),
        Line("top -A: all are counted", whole_s, "s"),
        Line("top -A: memory at most", peak, "MiB", GOAL_MIB, is_more_better=False),
        Line("top -A: of a processor, while nothing changes", 100 * share, "%"),
    ):
        print(line.render(2), flush=True)


def _tell(what: str, figures: tuple[float, float, float], goal_s: float | None) -> None:
    first_s, whole_s, peak = figures
    for line in (
        Line(f"{what}: first line", first_s, "s", goal_s, is_more_better=False),
        Line(f"{what}: to its end", whole_s, "s"),
        Line(f"{what}: memory at most", peak, "MiB", GOAL_MIB, is_more_better=False),
    ):
        print(line.render(2), flush=True)


async def _measure(folder: Path, number: int, only: list[str]) -> None:
    kubeconfig = folder / "kubeconfig"

    def is_wanted(what: str) -> bool:
        return not only or what.split(maxsplit=1)[0] in only

    async with filled.filled_server(number, kubeconfig):
        await asyncio.to_thread(run, ["version"], kubeconfig)  # byte code, once
        for what, words, goal_s in filter(lambda one: is_wanted(one[0]), COMMANDS):
            _tell(what, await asyncio.to_thread(run, words, kubeconfig), goal_s)
        for what, words in filter(lambda one: is_wanted(one[0]), TYPED):
            program = ("-c", KUBECTL_COMPLETE)
            _tell(what, await asyncio.to_thread(run, words, kubeconfig, program=program), GOAL_S)
        if is_wanted("top"):
            await asyncio.to_thread(_tell_top, kubeconfig, number)
        what, words = WATCHED
        if is_wanted(what):
            _tell(what, await asyncio.to_thread(run, words, kubeconfig, is_endless=True), None)


def main() -> None:
    """Fill a server, and type."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--only", default="", help="first words of what is measured, a,b: TAB, top")
    arguments = parser.parse_args()
    only = [word for word in arguments.only.split(",") if word]
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder), arguments.jobs, only))


if __name__ == "__main__":
    with under_way("jobs"):
        main()
