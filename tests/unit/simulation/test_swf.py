"""The Standard Workload Format: what is read is what was written, and errors name their place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.simulation.arrivals import synthetic
from fluxqueue.simulation.swf import SwfJob, SwfLog, from_jobs, parse, read_file, render, to_jobs

SAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "workload.swf"
GOOD = "1 0 10 100 4 -1 -1 4 200 -1 1 3 1 -1 -1 -1 -1 -1"

whole = st.one_of(st.just(-1), st.integers(0, 10**9))
fraction = st.one_of(st.just(-1), st.integers(0, 10**6), st.integers(0, 10**6).map(lambda n: n / 4))


@st.composite
def logs(draw: st.DrawFn) -> SwfLog:
    """Any log: header fields and lines."""
    keys = st.sampled_from(("Version", "MaxNodes", "MaxProcs", "Note"))
    header = draw(st.dictionaries(keys, st.text("abc 123:", max_size=9).map(str.strip)))
    jobs = [
        SwfJob(
            number=draw(st.integers(0, 10**6)),
            submit_s=draw(st.integers(0, 10**9)),
            wait_s=draw(whole),
            run_s=draw(whole),
            processors=draw(whole),
            cpu_s=draw(fraction),
            memory_kb=draw(fraction),
            asked_processors=draw(whole),
            asked_s=draw(whole),
            asked_memory_kb=draw(fraction),
            status=draw(st.integers(-1, 5)),
            user=draw(whole),
        )
        for _ in range(draw(st.integers(0, 4)))
    ]
    return SwfLog(header, tuple(jobs))


@settings(max_examples=100, deadline=None)
@given(log=logs())
def test_round_trip(log: SwfLog) -> None:
    """Every field of every line, and the header."""
    assert parse(render(log)) == log


def test_simulator_jobs_come_back_the_same() -> None:
    """Written as SWF and read again: the same jobs, but for what SWF has no word for."""
    jobs = synthetic(3, 40, nodes=8, cores_per_node=16)
    log = parse(render(from_jobs(jobs, {"Version": "2.2"})))
    again, skipped = to_jobs(log, cores_per_node=16)
    assert skipped == 0
    assert again == jobs


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (GOOD.rsplit(" ", 1)[0], "log, line 2: has 17 fields"),
        (GOOD.replace("100", "1e9x"), "log, line 2, field 4 (run_s): '1e9x' is no number"),
        (GOOD.replace("1 0 10", "1 -1 10"), "log, line 2, field 2 (submit_s): -1 is below 0"),
        (GOOD.replace("1 0 10", "1 0 -7"), "log, line 2, field 3 (wait_s): -7 is below 0"),
        (GOOD.replace("100", "10.5"), "log, line 2, field 4 (run_s): 10.5 is no whole number"),
        (GOOD.replace("100", "nan"), "log, line 2, field 4 (run_s): 'nan' is no number"),
        (GOOD.replace("100", "inf"), "log, line 2, field 4 (run_s): 'inf' is no number"),
    ],
)
def test_errors_name_line_and_field(line: str, message: str) -> None:
    """A comment counts as a line; the field has its number and its name."""
    with pytest.raises(InvalidInput) as caught:
        parse(f"; Version: 2\n{line}\n", source="log")
    assert str(caught.value).startswith(message)


def test_compressed_files_and_files_that_are_none(tmp_path: Path) -> None:
    """.gz is unpacked; what cannot be read says so."""
    packed = tmp_path / "log.swf.gz"
    packed.write_bytes(gzip.compress(f"; MaxProcs: 64\n{GOOD}\n".encode()))
    log = read_file(packed)
    assert len(log.jobs) == 1
    assert log.header_number("MaxProcs") == 64
    assert log.header_number("MaxNodes") is None
    packed.write_bytes(b"not compressed")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_file(packed)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_file(tmp_path / "none.swf")


def test_lines_become_jobs() -> None:
    """Requested values win over used ones; times start at 0; the unknown is left out."""
    lines = [
        "7 1000 5 100 4 -1 -1 32 200 -1 1 3 1 -1 -1 -1 -1 -1",
        "8 1010 5 50 2 -1 -1 -1 -1 -1 1 -1 1 -1 -1 -1 -1 -1",
        "9 1020 5 -1 -1 -1 -1 4 200 -1 5 3 1 -1 -1 -1 -1 -1",
        "6 990 5 300 8 -1 -1 8 100 -1 1 3 1 -1 -1 -1 -1 -1",
    ]
    jobs, skipped = to_jobs(parse("\n".join(lines)), cores_per_node=16)
    assert skipped == 1
    assert [(job.submit_s, job.runs_s, job.request.duration_s, job.user) for job in jobs] == [
        (0, 300, 100, "user3"),
        (10, 100, 200, "user3"),
        (20, 50, 50, ""),
    ]
    assert [job.cpu_m // 1000 for job in jobs] == [8, 32, 2]
    assert [job.request.size for job in jobs] == [1, 2, 1]


def test_the_sample_is_what_it_says() -> None:
    """The file of the documentation: 40 jobs, none left out, none too large."""
    log = read_file(SAMPLE)
    jobs, skipped = to_jobs(log, cores_per_node=8)
    assert (len(jobs), skipped) == (40, 0)
    assert max(job.cpu_m for job in jobs) <= 1000 * (log.header_number("MaxProcs") or 0)
