"""What processes use, read from /proc: processor time and memory, alone or with their children.

Used by the benchmarks that run the whole system. Linux only.
"""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used, without its children."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def tree_cpu_s(pid: int) -> float:
    """The same with all its children, those that have ended included."""
    ticks = 0
    for one in _tree(pid):
        try:
            ticks += sum(int(field) for field in _stat(one)[11:15])
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since. Its parent counts it from now on
    return ticks / TICKS_PER_S


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory now and at most."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in {"VmRSS", "VmHWM"}:
            found[key] = int(rest.split()[0]) / 1024
    return found["VmRSS"], found["VmHWM"]


def tree_memory_mib(pid: int) -> float:
    """Proportional memory of a process and its children: what they share counts once."""
    kib = 0
    for one in _tree(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        kib += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return kib / 1024


def _tree(pid: int) -> list[int]:
    """A process and everything below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(int(entry.name))[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def _stat(pid: int) -> list[str]:
    """The fields of its ``stat`` after the command, which stands in parentheses."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
