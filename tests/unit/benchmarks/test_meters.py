"""What the benchmarks make of what they read: a log, counters, samples."""

from __future__ import annotations

from benchmarks.soak import MEMORY, Series, verdict
from benchmarks.throughput.load import Load
from benchmarks.throughput.meters import MeterReading, count_statements
from benchmarks.throughput.report import MANAGED, PLAIN, Measured, Run, beyond, figures

LOG = """\
sqlmeter|fluxqueue-worker/0002|3/7|LOG:  statement: BEGIN
sqlmeter|fluxqueue-worker/0002|3/7|LOG:  execute _pg3_0: SELECT uid
\tFROM fluxjobs
\tWHERE uid = $1
sqlmeter|fluxqueue-worker/0002|3/7|DETAIL:  Parameters: $1 = 'a: b'
sqlmeter|fluxqueue-worker/0002|3/7|LOG:  statement: COMMIT
sqlmeter|fluxqueue-worker/0002|3/8|LOG:  execute <unnamed>: {nothing}
sqlmeter|fluxqueue-controller/0002|4/2|LOG:  statement: UPDATE pods SET phase = 'x'
sqlmeter|psql|5/1|LOG:  statement: SELECT 1
sqlmeter||0/0|LOG:  checkpoint starting: time
""".replace("{nothing}", "")  # as a pool asks whether a connection lives


def test_statements_are_counted_by_text_role_and_transaction() -> None:
    """Lines of one statement are one. Others' sessions and the server's own lines are none."""
    counted = count_statements(LOG)
    assert counted.by_text == {
        "SELECT uid FROM fluxjobs WHERE uid = $1": 1,
        "UPDATE pods SET phase = 'x'": 1,
    }
    assert counted.by_role == {"worker": 1, "controller": 1}
    assert (counted.control, counted.transactions) == (3, 2)


def test_what_is_beyond_counts_less_of_one_kind_against_more_of_another() -> None:
    """A PATCH in place of a PUT is no further request."""
    found = beyond({"PATCH jobs": 2.0, "POST jobs": 1.0}, {"PUT jobs": 1.0, "POST jobs": 1.0})
    assert found == {"PATCH jobs": 2.0, "PUT jobs": -1.0}
    assert sum(found.values()) == 1.0


def test_a_figure_stands_beside_its_goal() -> None:
    """The ratio is that of the medians. Without runs there is no line."""
    load = Load("one", 100, 1)
    runs = [
        Run(mode, load, took_s, MeterReading(took_s, {"worker-0": 1.0}, None))
        for mode, took_s in ((PLAIN, 2.0), (PLAIN, 2.0), (MANAGED, 4.0))
    ]
    lines = {line.what: line for line in figures(Measured(runs))}
    ratio = lines["one-pod Jobs, managed, ratio to plain"]
    assert (ratio.value, ratio.is_reached) == (0.5, False)
    assert lines["CPU of our parts and Postgres per one-pod Job"].value == 10.0
    assert not [what for what in lines if "bystander" in what]


def test_what_grows_in_the_last_third_is_named() -> None:
    """Growth before, and growth within the slack, is none."""
    flat = [(float(at), 100.0 if at > 30 else 20.0) for at in range(90)]
    leaks = [(float(at), 100.0 + at) for at in range(90)]
    series = {"flat": Series(MEMORY, "MiB", flat), "leaks": Series(MEMORY, "MiB", leaks)}
    _, growing = verdict(series, 90.0)
    assert growing == ["leaks"]
