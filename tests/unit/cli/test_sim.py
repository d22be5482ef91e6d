"""``fluxqueue sim``: what it prints, what it writes, how it fails."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from fluxqueue.cli.main import app
from fluxqueue.errors import InvalidInput

SAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "workload.swf"


def run(*arguments: str) -> str:
    """Its output. It must succeed."""
    result = CliRunner().invoke(app, ["sim", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_all_policies_by_default() -> None:
    """One line for each, and the same on every run."""
    text = run("--jobs", "12", "--nodes", "2", "--cores", "4", "--seed", "3")
    assert [line.split()[0] for line in text.splitlines()[2:]] == [
        "fcfs",
        "easy",
        "hybrid",
        "conservative",
    ]
    assert text == run("--jobs", "12", "--nodes", "2", "--cores", "4", "--seed", "3")


def test_a_saved_workload_gives_the_same_figures(tmp_path: Path) -> None:
    """Seed to file, file to figures."""
    saved = tmp_path / "work.swf"
    size = ("--jobs", "15", "--nodes", "2", "--cores", "4", "--policy", "easy")
    first = run(*size, "--save", str(saved)).splitlines()[-1]
    assert run(*size, "--swf", str(saved)).splitlines()[-1] == first


def test_a_chart_that_cannot_be_drawn_is_refused_before_the_work() -> None:
    """A long simulation is not thrown away at its end."""
    result = CliRunner().invoke(app, ["sim", "--jobs", "12", "--out", "chart.gif"])
    assert isinstance(result.exception, InvalidInput)
    assert result.output == ""


def test_the_sample_and_a_chart(tmp_path: Path) -> None:
    """The command of the documentation."""
    chart = tmp_path / "gantt.svg"
    text = run(
        "--swf",
        str(SAMPLE),
        "--nodes",
        "4",
        "--cores",
        "8",
        "--policy",
        "easy",
        "--out",
        str(chart),
    )
    assert "40 jobs (workload.swf) on 4 nodes of 8 cores" in text
    assert chart.read_bytes().startswith(b"<?xml")


def test_bad_files_and_policies_name_the_fault(tmp_path: Path) -> None:
    """Our own errors, which the command line turns into one line."""
    broken = tmp_path / "x.swf"
    broken.write_text("1 2 3\n")
    result = CliRunner().invoke(app, ["sim", "--swf", str(broken)])
    assert isinstance(result.exception, InvalidInput)
    assert "x.swf, line 1" in str(result.exception)
    result = CliRunner().invoke(app, ["sim", "--match-policy", "fastest"])
    assert "match-policy: 'fastest' is no match policy" in str(result.exception)
    result = CliRunner().invoke(app, ["sim", "--policy", "magic"])
    assert isinstance(result.exception, InvalidInput)
    assert "fcfs, easy, hybrid, conservative" in str(result.exception)


def test_urgent_jobs_have_others_make_way() -> None:
    """The same workload. What is urgent waits for less, and the output names what was preempted."""
    size = ("--jobs", "60", "--nodes", "4", "--cores", "4", "--policy", "easy", "--urgent", "0.2")
    without, preempting = run(*size), run(*size, "--preemption", "--grace", "1m")
    told = preempting.splitlines()[3]
    found = re.fullmatch(
        r"easy: (\d+) jobs were preempted for (\d+) and restarted (\d+) times", told
    )
    assert found is not None, preempting
    assert all(int(number) > 0 for number in found.groups())
    assert "made way" not in without
    assert without.splitlines()[2] != preempting.splitlines()[2]
    spared = run(*size, "--preemption", "--min-runtime", "99d")
    assert "easy: 0 jobs were preempted for 0" in spared
    assert spared.splitlines()[2] == without.splitlines()[2]


def test_a_duration_that_cannot_be_read_is_refused_by_its_option() -> None:
    result = CliRunner().invoke(app, ["sim", "--preemption", "--grace", "soon"])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.where == "--grace"


def test_a_match_policy_says_how_nodes_are_filled() -> None:
    """Shares of nodes that are spread leave no whole node to a job that wants whole nodes."""
    work = ("--swf", str(SAMPLE), "--nodes", "4", "--cores", "8")
    told = {
        name: run(*work, "--policy", "easy", "--match-policy", name) for name in ("pack", "spread")
    }
    assert told["pack"] == run(*work, "--policy", "easy")
    assert told["pack"] != told["spread"]
