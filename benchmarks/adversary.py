"""``make adversary``: what tenants can do to the queue, as the table of figures.

Runs the adversary suite with each attack at its full size, the round of deletions, hostile inputs
and large objects, and prints a line for each figure with its goal. Exit 1 where one is missed. On
a real control plane as well where ``KUBEBUILDER_ASSETS`` names its programs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson

from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.errors import InvalidInput
from fluxqueue_webhook.admit import admit
from fluxqueue_webhook.bounded import CPU_MAX_S
from tests.adversary.probing import ADMITTED_S, RELEASED_S
from tests.support.greedy_lives import broken_promises
from tests.support.hostile_reviews import typed, untyped
from tests.support.large_objects import LARGE, long_notes
from tests.support.workloads import admission_review

BATCH = 500
DRAWS: dict[str, Callable[[random.Random], dict[str, Any]]] = {"typed": typed, "untyped": untyped}
SHARED = 1.2
"""Figures of a machine that others make more than so many times slower are told as such."""
WAYS = 4
"""Ways in which ``tests/e2e/test_deleted_at_once.py`` has a Job deleted."""


def admit_timed(review: Any) -> tuple[float, str]:
    """Processor seconds of one admission, and what broke in it (empty: nothing)."""
    body = json.dumps(review)
    began, broke = time.process_time(), ""
    try:
        orjson.dumps(admit(orjson.loads(body)).review)
    except (InvalidInput, orjson.JSONDecodeError):  # answered in words
        pass
    except Exception as error:  # noqa: BLE001  a defect is what is counted here
        broke = f"{type(error).__name__}: {error}"
    return time.process_time() - began, broke


def try_hostile(sort: str, seed: int) -> tuple[int, list[str]]:
    """Draw a batch. Return how many were too slow, and what broke."""
    chance, slow, broken = random.Random(seed), 0, []
    for number in range(BATCH):
        took_s, broke = admit_timed(DRAWS[sort](chance))
        slow += took_s > CPU_MAX_S
        if broke:
            broken.append(f"{sort} seed {seed} number {number}: {broke}")
    return slow, broken


def hostile(number: int) -> Iterator[Line]:
    """Hostile inputs that were answered by a defect, or too late."""
    with ProcessPoolExecutor() as pool:
        for sort in DRAWS:
            seeds = range(-(-number // BATCH))
            found = list(pool.map(try_hostile, [sort] * len(seeds), seeds))
            for line in [line for _, broken in found for line in broken][:5]:
                print(line, file=sys.stderr)
            failed = sum(slow + len(broken) for slow, broken in found)
            what = f"of {len(seeds) * BATCH:,} {sort} hostile inputs, failed or too slow"
            yield Line(what, failed, "", 0, is_more_better=False)


def large() -> Line:
    """Return the slowest admission of an object of up to 3 MB, each measured twice."""
    objects = {name: make() for name, make in LARGE.items()} | long_notes()
    costs = {
        name: min(admit_timed(admission_review(obj))[0] for _ in range(2))
        for name, obj in objects.items()
    }
    worst = max(costs, key=lambda name: costs[name])
    what = f"slowest of {len(costs)} objects of up to 3 MB: {worst}"[:58]
    return Line(what, costs[worst], "s", CPU_MAX_S, is_more_better=False)


def run_tests(*arguments: str, **environ: str) -> tuple[int, int]:
    """Run tests of this tree. Return how many passed, and how many failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        subprocess.run(command, env={**os.environ, **environ}, check=False)
        return _counts(report.read_text()) if report.is_file() else (0, 1)


def _counts(report: str) -> tuple[int, int]:
    suite = ElementTree.fromstring(report).find("testsuite")  # noqa: S314  written just now
    assert suite is not None
    numbers = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
    failed = numbers["failures"] + numbers["errors"]
    return numbers["tests"] - failed - numbers["skipped"], failed


def attacks(size: float, marks: str) -> Iterator[Line]:
    """Return the slowest probe of any attack, and the number of failed tests."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        figures.touch()
        passed, failed = run_tests(
            "tests/adversary",
            "-m",
            marks,
            "--timeout=3600",
            FLUXQUEUE_ADVERSARY_FIGURES=str(figures),
            FLUXQUEUE_ADVERSARY_SIZE=str(size),
        )
        lines = [json.loads(line) for line in figures.read_text().splitlines()]
    if (slower := max((line["slower"] for line in lines), default=1.0)) > SHARED:
        print(f"other processes made the machine up to {slower:.1f} times slower", file=sys.stderr)
    for cluster in Counter(line["cluster"] for line in lines):
        own = [line for line in lines if line["cluster"] == cluster]
        print(
            f"{cluster}: seconds until a probe is admitted and released, and as many plain requests"
        )
        for line in own:
            times = " ".join(f"{line[what]:8.2f}" for what in ("admitted", "released", "plain"))
            print(f"  {line['attack']:<40} {times}")
        for what, goal_s in (("admitted", ADMITTED_S), ("released", RELEASED_S)):
            worst = max(own, key=lambda line: line[what])
            text = f"{cluster}: slowest probe {what}: {worst['attack']}"
            yield Line(text[:58], worst[what], "s", goal_s, is_more_better=False)
    yield Line(f"of {passed + failed} tests of the suite, failed", failed, "", 0, False)


def deleted(number: int) -> Line:
    """Completed Jobs that were recorded as something else, deleted at once in any way."""
    each = -(-number // WAYS)
    _, failed = run_tests(
        "tests/e2e/test_deleted_at_once.py",
        "-m",
        "not real_cluster",
        "-k",
        "test_a_job_that_succeeded_is_completed",
        FLUXQUEUE_TEST_DELETED=str(each),
    )
    what = f"ways in which one of {each} completed Jobs is lost"
    return Line(what, failed, "", 0, is_more_better=False)


def greedy(number: int) -> Line:
    """Promises that a greedy tenant breaks in random lives, on virtual time."""
    broken = sum(len(broken_promises(seed)[1]) for seed in range(number))
    what = f"promises broken in {number} lives with a greedy tenant"
    return Line(what, broken, "", 0, is_more_better=False)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--inputs", type=int, default=50_000, help="hostile inputs of each sort")
    parser.add_argument("--deleted", type=int, default=200, help="Jobs that are deleted at once")
    parser.add_argument("--lives", type=int, default=1_000, help="lives with a greedy tenant")
    parser.add_argument("--size", type=float, default=1.0, help="of each attack; 1 is the whole")
    asked = parser.parse_args()
    marks = "real_cluster or not real_cluster" if os.environ.get("KUBEBUILDER_ASSETS") else ""
    lines = [*hostile(asked.inputs), large(), greedy(asked.lives)]
    lines += [deleted(asked.deleted), *attacks(asked.size, marks or "not real_cluster")]
    for line in lines:
        print(line.render(2))
    print("costs per Job: make bench-throughput (docs/admin/operations.md)")
    sys.exit(not all(line.is_reached for line in lines))


if __name__ == "__main__":
    with under_way("adversary"):
        main()
