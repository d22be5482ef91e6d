"""A workload log in the time machine: what it is compared with, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxqueue.simulation.answering import answer
from fluxqueue.simulation.log_day import JOBS_MAX
from fluxqueue.simulation.swf import parse
from fluxqueue.view import time_machine

SAMPLE = Path(__file__).parents[3] / "docs/examples/workload.swf"
LINE = "7 5 -1 10 1 -1 -1 1 20 -1 1 3 -1 -1 -1 -1 -1 -1\n"
SETTINGS = {"levels": [], "queuePolicy": "easy", "queueDepth": 1000, "matchPolicy": "pack"}


def ask(
    log: str, policy: str = "", nodes: Any = 4, cores: Any = 8, more: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What the process answers."""
    return answer(
        {
            "log": log,
            "name": "work.swf",
            "machine": {"nodes": nodes, "cores": cores},
            "policy": policy,
            "nodes": more,
            "weights": (),
            "settings": SETTINGS,
        }
    )


def test_without_a_change_both_are_equal() -> None:
    """The log under the policy of the cluster is the record."""
    told = ask(SAMPLE.read_text())
    assert told["baseline"] == "easy"
    assert told["changes"] == "no change"
    assert told["recorded"] == told["replayed"]
    assert all(job[6:9] == job[9:12] for job in told["jobs"])
    lines = parse(SAMPLE.read_text()).jobs
    assert [job[2] for job in told["jobs"]] == [f"job-{one.number}" for one in lines]


def test_other_policies_and_more_nodes() -> None:
    """The sample waits longer with fcfs, and less with more nodes."""
    text = SAMPLE.read_text()
    slow, fast = ask(text, "fcfs"), ask(text, more=("4:cpu=8",))
    as_it_is = slow["recorded"]["waits"]["all"]["mean"]
    assert slow["replayed"]["waits"]["all"]["mean"] > as_it_is
    assert fast["replayed"]["waits"]["all"]["mean"] < as_it_is
    assert fast["added"] == 4


def test_the_waits_and_the_time_of_the_log() -> None:
    """A log may say when it began, and how long its jobs waited."""
    told = ask("; UnixStartTime: 1700000000\n" + LINE.replace("5 -1 10", "5 30 10"))
    assert told["since"] == 1_700_000_005
    assert told["until"] == told["since"] + 10
    assert told["notes"] == ["the log itself has 1 waits: median 30 s, 95th percentile 30 s"]


def test_what_is_left_out_is_named() -> None:
    """Lines without a run time, late jobs, and jobs that are too large."""
    log = LINE + LINE.replace("10 1", "-1 1") + LINE.replace("7 5", f"8 {32 * 86_400}")
    log += LINE.replace("-1 1 20", "-1 900 20")
    told = ask(log)
    assert [job[2] for job in told["jobs"]] == ["job-7"]
    assert told["notes"] == [
        "lines without a run time or a size, left out: 1",
        "jobs after the first 31 days, left out: 1",
        "jobs larger than the machine, left out: 1",
    ]


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("<svg onload=alert(1)>", "work.swf, line 1: has 2 fields. Fix: 18 numbers"),
        ("; a comment\n" + LINE.replace("10", "ten", 1),
         "work.swf, line 2, field 4 (run_s): 'ten' is no number. Fix: -1"),
        (LINE.replace("10", "1e999", 1), "line 1, field 4 (run_s): '1e999' is no number"),
        (LINE.replace("5", "-9", 1), "line 1, field 2 (submit_s): -9 is below 0. Fix: "),
        (LINE.replace("20", "9" * 30), "field 9 (asked_s)"),
        ("; only a comment\n", "work.swf: has no job with a run time and a size. Fix: choose"),
        (LINE.replace("-1 1 20", f"-1 {10**12} 20"), "work.swf: has only jobs that are larger"),
        (LINE * (JOBS_MAX + 1), f"work.swf: has more than {JOBS_MAX} jobs. Fix: take fewer"),
        ("\0" * 5000, "work.swf, line 1: has 1 fields"),
    ],
)  # fmt: skip
def test_bad_files(log: str, message: str) -> None:
    """Line, field, value and the way out."""
    assert message in ask(log)["refused"]


@pytest.mark.parametrize("bad", [0, -1, 10**9, "4", True, None, 1.5])
def test_bad_machines(bad: Any) -> None:
    """Field, value and the bounds."""
    assert "Fix: give a whole number from 1 to 5000" in ask(LINE, nodes=bad)["refused"]
    assert "Fix: give a whole number from 1 to 1024" in ask(LINE, cores=bad)["refused"]


def test_a_job_that_never_ends_does_not_stretch_the_picture() -> None:
    """Thirty thousand years would be a chart of nothing."""
    told = ask(LINE.replace(" 10 ", f" {10**12} "))
    assert told["until"] - told["since"] == 31 * 86_400


def test_a_log_may_have_as_many_jobs_as_a_day() -> None:
    """Both are bounded by the memory of the process."""
    assert JOBS_MAX == time_machine.JOBS_MAX
