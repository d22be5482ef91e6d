"""``make adversary``: what tenants can do to the queue, as the table of figures.

Runs the adversary suite with each attack at its full size, lives with a greedy tenant, databases
that go back, cancelled and deleted jobs, hostile inputs and large objects, and prints a line for
each figure with its goal, and with what it was one round before. Exit 1 where one is missed. On a
real control plane as well where ``KUBEBUILDER_ASSETS`` names its programs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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
from tests.e2e.test_set_back import AGAIN_S
from tests.support import figures
from tests.support.greedy_lives import broken_promises
from tests.support.hostile_reviews import typed, untyped
from tests.support.large_objects import LARGE, long_notes
from tests.support.workloads import admission_review

BATCH = 500
DRAWS: dict[str, Callable[[random.Random], dict[str, Any]]] = {"typed": typed, "untyped": untyped}
BROKEN_BEFORE = "by each of four tricks"
NEW = {
    "forged-reviews": "refused",
    "queues-that-do-not-exist": "3,600 series",
    "jobs-for-a-full-pool": "never",
    "logins-half-sent": "window stopped",
}
"""Attacks that are new in this round, and what they did before it."""
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


@dataclass(frozen=True)
class SuiteRun:
    """How many tests passed and failed, and the figures that they wrote down."""

    passed: int
    failed: int
    figures: list[dict[str, Any]]

    def of(self, figure: str) -> list[dict[str, Any]]:
        """Return the figures of one name."""
        return [one for one in self.figures if one["figure"] == figure]

    def line(self, name: str) -> Line:
        """Return the number of failed tests."""
        what = f"of {self.passed + self.failed} tests of {name}, failed"
        return Line(what, self.failed, "", 0, is_more_better=False)


def run_tests(*arguments: str, **environ: str) -> SuiteRun:
    """Run tests of this tree."""
    with tempfile.TemporaryDirectory() as folder:
        report, file = Path(folder) / "report.xml", Path(folder) / "figures"
        file.touch()
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", *arguments]
        command.append("--timeout=14400")
        known = {**os.environ, figures.VARIABLE: str(file), **environ}
        subprocess.run(command, env=known, check=False)
        counts = _counts(report.read_text()) if report.is_file() else (0, 1)
        return SuiteRun(*counts, figures.read_all(file))


def _counts(report: str) -> tuple[int, int]:
    suite = ElementTree.fromstring(report).find("testsuite")  # noqa: S314  written just now
    assert suite is not None
    numbers = {key: int(suite.get(key, "0")) for key in ("tests", "failures", "errors", "skipped")}
    failed = numbers["failures"] + numbers["errors"]
    return numbers["tests"] - failed - numbers["skipped"], failed


def attacks(size: float, lives: int, marks: str) -> Iterator[Line]:
    """Probes during each attack, promises that a greedy tenant breaks, and failed tests."""
    run = run_tests(
        *("tests/adversary", "-m", marks),
        FLUXQUEUE_ADVERSARY_SIZE=str(size),
        FLUXQUEUE_TEST_GREEDY_LIVES=str(lives),
    )
    for one in run.of("greedy"):
        what = f"{one['cluster']}: of {one['promises']} promises in {one['lives']} lives, broken"
        yield Line(what, one["broken"], "", 0, is_more_better=False, before=BROKEN_BEFORE)
    lines = run.of("probe")
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
            for line in [line for line in own if line["attack"] in NEW]:
                text = f"{cluster}: probe {what} under {line['attack']}"
                yield Line(text[:58], line[what], "s", goal_s, False, NEW[line["attack"]])
            worst = max(own, key=lambda line: line[what])
            text = f"{cluster}: slowest probe {what}: {worst['attack']}"
            yield Line(text[:58], worst[what], "s", goal_s, is_more_better=False)
    yield run.line("the suite")


def deleted(number: int) -> Line:
    """Completed Jobs that were recorded as something else, deleted at once in any way."""
    each = -(-number // WAYS)
    run = run_tests(
        *("tests/e2e/test_deleted_at_once.py", "-m", "not real_cluster"),
        *("-k", "test_a_job_that_succeeded_is_completed"),
        FLUXQUEUE_TEST_DELETED=str(each),
    )
    what = f"ways in which one of {each} completed Jobs is lost"
    return Line(what, run.failed, "", 0, is_more_better=False)


def set_back(turns: int, jobs: int) -> Iterator[Line]:
    """Turns in which a database that went back left something wrong, and the slowest of them."""
    run = run_tests(
        *("tests/e2e/test_set_back.py", "-m", "not real_cluster"),
        *("-k", "not controller and not worker"),
        FLUXQUEUE_TEST_SET_BACK=str(turns),
        FLUXQUEUE_TEST_SET_BACK_JOBS=str(jobs),
    )
    found = run.of("set-back")
    by_s = [one["by"] for one in found] or [0.0]
    what = f"of {turns} turns back by {min(by_s):.0f} to {max(by_s):.0f} s under {jobs} jobs, wrong"
    wrong = turns - len(found)
    yield Line(what, wrong, "", 0, is_more_better=False, before="wrong for ever")
    again_s = max((one["again"] for one in found), default=math.inf)
    what = "slowest of them from seen to deciding again"
    yield Line(what, again_s, "s", AGAIN_S, is_more_better=False, before="never")


def cancelled(each: int, marks: str) -> Iterator[Line]:
    """How many jobs that were cancelled or deleted are recorded as such, by kind."""
    run = run_tests("tests/e2e/test_cancelled.py", "-m", marks, FLUXQUEUE_TEST_CANCELLED=str(each))
    count, of = Counter[str](), Counter[str]()
    for one in run.of("cancelled"):
        count[one["kind"]] += one["count"]
        of[one["kind"]] += one["of"]
    for kind in of:
        what = f"{kind}: cancelled or deleted, recorded as such"
        yield Line(what, count[kind], f"of {of[kind]}", of[kind], before="0 of 11")
    yield run.line("them")


def greedy(number: int) -> Line:
    """Promises that a greedy tenant breaks in random lives, on virtual time."""
    broken = sum(len(broken_promises(seed)[1]) for seed in range(number))
    what = f"promises broken in {number:,} lives with a greedy tenant"
    return Line(what, broken, "", 0, is_more_better=False, before=BROKEN_BEFORE)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--inputs", type=int, default=50_000, help="hostile inputs of each sort")
    parser.add_argument("--deleted", type=int, default=200, help="Jobs that are deleted at once")
    parser.add_argument("--lives", type=int, default=1_000, help="lives with a greedy tenant")
    parser.add_argument("--cluster-lives", type=int, default=100, help="the same on a cluster")
    parser.add_argument("--set-back", type=int, default=50, help="times that a database goes back")
    parser.add_argument("--jobs", type=int, default=200, help="Jobs that run meanwhile")
    parser.add_argument("--cancelled", type=int, default=5, help="jobs of each kind, way, moment")
    parser.add_argument("--size", type=float, default=1.0, help="of each attack; 1 is the whole")
    asked = parser.parse_args()
    is_real = bool(os.environ.get("KUBEBUILDER_ASSETS"))
    marks = "real_cluster or not real_cluster" if is_real else "not real_cluster"
    lines = [*hostile(asked.inputs), large(), greedy(asked.lives)]
    lines += [*attacks(asked.size, asked.cluster_lives, marks)]
    lines += [*set_back(asked.set_back, asked.jobs), *cancelled(asked.cancelled, marks)]
    lines += [deleted(asked.deleted)]
    for line in lines:
        print(line.render(2))
    print("costs per Job: make bench-throughput (docs/admin/operations.md)")
    sys.exit(not all(line.is_reached for line in lines))


if __name__ == "__main__":
    with under_way("adversary"):
        main()
