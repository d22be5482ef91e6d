"""The Standard Workload Format: what is read is what was written, and errors name their place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.simulation.arrivals import synthetic
from fluxqueue.simulation.swf import (
    SwfJob,
    SwfLog,
    _decode,
    from_jobs,
    parse,
    read_file,
    render,
    to_jobs,
)

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
        (
            GOOD.replace("4 200", "4.5 200"),
            "log, line 2, field 8 (asked_processors): 4.5 is no whole number",
        ),
        (GOOD.replace("1 0 10", "-1 0 10"), "log, line 2, field 1 (number): -1 is below 0"),
        (GOOD.replace("100", "nan"), "log, line 2, field 4 (run_s): 'nan' is no number"),
        (GOOD.replace("100", "1e300"), "log, line 2, field 4 (run_s): 1e300 is above"),
        (GOOD.replace("100", "inf"), "log, line 2, field 4 (run_s): 'inf' is no number"),
    ],
)
def test_errors_name_line_and_field(line: str, message: str) -> None:
    """A comment counts as a line. The field has its number and its name."""
    with pytest.raises(InvalidInput) as caught:
        parse(f"; Version: 2\n{line}\n", source="log")
    assert str(caught.value).startswith(message)


def test_compressed_files_and_files_that_are_none(tmp_path: Path) -> None:
    """.gz is unpacked. What cannot be read says so."""
    packed = tmp_path / "log.swf.gz"
    packed.write_bytes(gzip.compress(f"; MaxProcs: 64\n{GOOD}\n".encode()))
    log = read_file(packed)
    assert len(log.jobs) == 1
    assert log.header == {"MaxProcs": "64"}
    whole = gzip.compress(f"{GOOD}\n".encode() * 50)
    for spoilt in (b"not compressed", whole[:30], whole[:10] + b"\xff" * 20 + whole[30:]):
        packed.write_bytes(spoilt)
        with pytest.raises(InvalidInput, match=r"cannot be read.*Fix: name an SWF file"):
            read_file(packed)
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_file(tmp_path / "none.swf")


def test_lines_become_jobs() -> None:
    """Requested values win over used ones. Times start at 0. The unknown is left out."""
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


def line(
    number: int = 1, submit: object = 0, run: object = 100, status: int = 1, queue: int = -1
) -> str:
    return f"{number} {submit} 10 {run} 4 -1 -1 4 200 -1 {status} 3 1 -1 {queue} -1 -1 -1"


def test_partial_executions_are_not_jobs() -> None:
    """The line of the whole job counts. Only the first part has a submission."""
    for last in (3, 4):
        log = parse("\n".join([line(run=300), line(status=2), line(submit=-1, status=2),
                               line(submit=-1, run=200, status=last), line(2, 50)]))  # fmt: skip
        jobs, skipped = to_jobs(log, cores_per_node=16)
        assert [job.runs_s for job in jobs] == [300, 100]
        assert skipped == 3
    with pytest.raises(InvalidInput, match="submit_s"):
        parse(line(submit=-1, status=1))


@pytest.mark.parametrize(
    ("run", "status", "seconds"),
    [("0", 1, 1), ("0", 0, 1), ("0", -1, 1), ("0", 5, None), ("-1", 1, None), ("0.2", 1, 1),
     ("10.5", 1, 11), ("7", 5, 7), ("12.0", 1, 12)],
)  # fmt: skip
def test_short_runs_and_fractions(run: str, status: int, seconds: int | None) -> None:
    """Less than a second is one second. What was cancelled before its start has no run."""
    jobs, _ = to_jobs(parse(line(run=run, status=status)), cores_per_node=16)
    assert [job.runs_s for job in jobs] == ([] if seconds is None else [seconds])


def test_a_fraction_of_a_submission_is_rounded_down() -> None:
    jobs, _ = to_jobs(parse(f"{line(1, '10.2')}\n{line(2, '12.9')}"), cores_per_node=16)
    assert [job.submit_s for job in jobs] == [0, 2]


@pytest.mark.parametrize(
    "comment",
    [
        "; Note: caf\u00e9 \u2026 \u2028 end".encode(),
        "; Note: d\u00e9j\u00e0 vu".encode("latin-1"),
        b"; Note: jobs \x85 of \x0b all \x1c parts",
        "; Note: \u0105\u0119 \u00c5".encode("iso-8859-2", "ignore"),
        "; Note: \u8a08\u7b97".encode("shift-jis"),
        b"\xef\xbb\xbf; Note: with a mark",
    ],
)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_comments_in_any_encoding(comment: bytes, end: bytes, tmp_path: Path) -> None:
    """No byte of a comment ends its line."""
    file = tmp_path / "x.swf"
    file.write_bytes(end.join([comment, b"; MaxNodes: 4", GOOD.encode(), b""]))
    log = read_file(file)
    assert (len(log.jobs), log.header["MaxNodes"]) == (1, "4")
    assert "Note" in log.header


def test_utf_16() -> None:
    """With its mark, as some editors write it."""
    assert len(parse(_decode(f"; Note: x\n{GOOD}\n".encode("utf-16"))).jobs) == 1


def test_queues_by_the_names_of_the_header() -> None:
    """By the name or the number. Others go to the default queue."""
    log = parse("\n".join(["; Queue: 1 Batch (the usual one)", "; Queue: 2 debug",
                           *(line(n, queue=n) for n in range(1, 5)), line(5)]))  # fmt: skip
    jobs, _ = to_jobs(log, cores_per_node=16, queues={"batch", "queue3"})
    assert [job.queue for job in jobs] == ["batch", "default", "queue3", "default", "default"]


def test_the_sample_is_what_it_says() -> None:
    """The file of the documentation: 40 jobs, none left out, none too large."""
    log = read_file(SAMPLE)
    jobs, skipped = to_jobs(log, cores_per_node=8)
    assert (len(jobs), skipped) == (40, 0)
    assert max(job.cpu_m for job in jobs) <= 1000 * int(log.header["MaxProcs"])
