"""Annotations that say when a workload may start: read as Slurm's users write them, or refused."""

from __future__ import annotations

import time

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.dependency import DependencyKind as K
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.fluxjob_object import begin_time
from fluxqueue.workload.starting import Dependency, parse_begin_time


def job(**annotations: str) -> dict[str, object]:
    """A BatchJob ``me`` with annotations."""
    named = {f"fluxqueue/{key.replace('_', '-')}": value for key, value in annotations.items()}
    meta = {"name": "me", "creationTimestamp": "2030-01-01T00:00:00Z", "annotations": named}
    return {"kind": "Job", "metadata": meta, "spec": {}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("afterok:a", [Dependency(K.AFTEROK, "a")]),
        ("afterok:a,b", [Dependency(K.AFTEROK, "a"), Dependency(K.AFTEROK, "b")]),
        ("afterok:a:b", [Dependency(K.AFTEROK, "a"), Dependency(K.AFTEROK, "b")]),
        (" afterok:a , afterany:17 \n", [Dependency(K.AFTEROK, "a"), Dependency(K.AFTERANY, "17")]),
        ("after:a.b-c afternotok:x", [Dependency(K.AFTER, "a.b-c"), Dependency(K.AFTERNOTOK, "x")]),
        ("afterok:a,afterok:a", [Dependency(K.AFTEROK, "a")]),
        ("singleton:me", [Dependency(K.SINGLETON, "me")]),
    ],
)
def test_dependencies_are_read(text: str, expected: list[Dependency]) -> None:
    """Commas, blanks and colons separate. A type holds until the next."""
    assert list(read_wishes(job(depends_on=text)).depends_on) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' has no type"),
        ("", "has no type"),
        ("afterok", "'afterok' has no type"),
        ("singleton", "or singleton:<name>"),
        ("afterok:", "'' is no name"),
        ("aftercorr:a", "'aftercorr' is no type of dependency"),
        ("afterok:A_b", "'A_b' is no name"),
        ("afterok:a?afterok:b", "is no name"),
        ("afterok:me", "'me' waits for itself"),
        ("afterok:" + ":".join(f"a{n}" for n in range(101)), "101 are more than 100"),
    ],
)
def test_other_dependencies_are_refused(text: str, message: str) -> None:
    """With the field, the value and the way out."""
    with pytest.raises(InvalidInput) as caught:
        read_wishes(job(depends_on=text))
    assert message in str(caught.value)
    assert caught.value.where == "metadata.annotations[fluxqueue/depends-on]"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-01T01:00:00Z", 3600),
        ("2030-01-01T01:00:00+01:00", 0),
        ("+2h", 7200),
        ("now+1d30m", 88_200),
        ("now + 90", 90),
        ("+1h90", 3690),
        ("+1h1h", 7200),
        ("1970-01-01T00:00:00Z", -1_893_456_000),
    ],
)
def test_begin_times_are_read(text: str, expected: int) -> None:
    """Absolute, or relative to the creation."""
    workload = job(begin_time=text)
    assert begin_time(workload, read_wishes(workload)) == 1_893_456_000 + expected
    assert begin_time(job(), read_wishes(job())) is None


@pytest.mark.parametrize(
    "text",
    [
        *("2030-01-01T01:00:00", "2030-01-01", "tomorrow", "2h", "", "+99999d", "+", "now+h"),
        *("+12345678901s", "+1hh", "now now+1h", "+-1h", "+١h"),
        *("0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00"),
        *("9999-12-31T23:59:59-14:00", "+9999999999d"),
    ],
)
def test_other_begin_times_are_refused(text: str) -> None:
    """A time without a zone would mean another moment in each place."""
    with pytest.raises(InvalidInput, match=r"fluxqueue/begin-time\]"):
        read_wishes(job(begin_time=text))


@pytest.mark.parametrize("text", ["+" + "2" * 40 + "y", "now+" + "1s" * 100_000 + "!", "+" * 9000])
def test_a_long_begin_time_takes_no_longer_than_its_length(text: str) -> None:
    """One pass: twice the digits once took twice the time, each."""
    began = time.process_time()
    with pytest.raises(InvalidInput):
        parse_begin_time(text, "here")
    assert time.process_time() - began < 0.2


def test_hold_is_true_or_false() -> None:
    """Nothing else."""
    assert read_wishes(job(hold="true")).is_held
    assert not read_wishes(job(hold="false")).is_held
    with pytest.raises(InvalidInput):
        read_wishes(job(hold="yes"))
