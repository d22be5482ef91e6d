"""What an author may write under ``fluxqueue/``, and what refusals say."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.annotations import Wishes, parse_duration, read_wishes
from fluxqueue.workload.kinds.table import kind_of
from tests.support.workloads import bare_pod, batch_job


@pytest.mark.parametrize(
    ("text", "expected_s"),
    [
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("2h30m", 9000),
        ("1d", 86400),
        ("1d2h3m4s", 93784),
        ("2147483647", 2147483647),
        ("1.5h", 5400),
        ("0.4s", 1),
        ("500ms", 1),
        ("90.5m", 5430),
        ("0.1m", 6),
    ],
)
def test_reads_durations(text: str, expected_s: int) -> None:
    assert parse_duration(text, "f") == expected_s


@pytest.mark.parametrize(
    "text",
    ["", "0", "0m", "-5", "1.5", "0ms", "1.5h30m", ".5h", "inf", "5 m", "m",
     "10x", "30m2h", "1h1h", "2h30", "2147483648",
     "99999999999", "１", "1D", "forever"],
)  # fmt: skip
def test_refuses_other_durations_with_field_and_value(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_duration(text, "metadata.annotations[fluxqueue/duration]")
    assert caught.value.where == "metadata.annotations[fluxqueue/duration]"
    assert caught.value.value == text
    assert caught.value.hint


def test_an_infinite_duration_is_none() -> None:
    """As in Flux (RFC 23). A job with one has no limit of its own."""
    for text in ("inf", "infinity"):
        pod = bare_pod(meta={"annotations": {"fluxqueue/duration": text}})
        assert read_wishes(pod).duration_s is None


def test_reads_every_wish() -> None:
    meta = {
        "labels": {"fluxqueue/queue": "batch", "app": "x"},
        "annotations": {
            "fluxqueue/duration": "1h",
            "fluxqueue/priority": "-7",
            "fluxqueue/exclusive": "true",
            "fluxqueue/spread": "node",
            "fluxqueue/within": "topology.kubernetes.io/zone",
            "other.example/fluxqueue": "free",
        },
    }
    assert read_wishes(bare_pod(meta=meta)) == Wishes(
        duration_s=3600,
        priority=-7,
        is_exclusive=True,
        is_spread=True,
        within="topology.kubernetes.io/zone",
        queue="batch",
    )


def test_says_nothing_where_nothing_is_said() -> None:
    assert read_wishes(bare_pod()) == Wishes()
    assert read_wishes(batch_job(meta={"labels": None, "annotations": None})) == Wishes()


def test_a_batch_jobs_own_word_wins_over_its_template() -> None:
    job = batch_job(
        meta={"annotations": {"fluxqueue/duration": "1m"}},
        template_meta={"annotations": {"fluxqueue/duration": "2m", "fluxqueue/priority": "3"}},
    )
    wishes = read_wishes(job)
    assert (wishes.duration_s, wishes.priority) == (60, 3)


def test_the_queue_is_read_from_an_annotation_too() -> None:
    assert read_wishes(bare_pod(meta={"annotations": {"fluxqueue/queue": "b"}})).queue == "b"


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("fluxqueue/exclusive", "yes", '"true" and "false"'),
        ("fluxqueue/spread", "zone", '"node"'),
        ("fluxqueue/priority", "high", "whole number"),
        ("fluxqueue/priority", "1.5", "whole number"),
        ("fluxqueue/priority", "9999999999", "whole number"),
        ("fluxqueue/within", "my zone", "such as zone or rack"),
        ("fluxqueue/within", "", "such as zone or rack"),
        ("fluxqueue/queue", "Batch", "lower-case"),
        ("fluxqueue/queue", "", "lower-case"),
        ("fluxqueue/duration", "soon", "15m"),
    ],
)
def test_refusals_name_field_value_and_what_is_allowed(key: str, value: str, allowed: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_wishes(bare_pod(meta={"annotations": {key: value}}))
    message = str(caught.value)
    assert f"metadata.annotations[{key}]" in message
    assert repr(value) in message
    assert allowed in message


def test_an_unknown_key_is_refused_with_the_nearest_and_all_known_ones() -> None:
    job = batch_job(template_meta={"annotations": {"fluxqueue/durration": "1m"}})
    with pytest.raises(InvalidInput) as caught:
        read_wishes(job)
    message = str(caught.value)
    assert "spec.template.metadata.annotations[fluxqueue/durration]" in message
    assert "did you mean fluxqueue/duration?" in message
    assert "fluxqueue/spread" in message


def test_an_unlike_key_is_refused_without_a_guess() -> None:
    with pytest.raises(InvalidInput) as caught:
        read_wishes(bare_pod(meta={"labels": {"fluxqueue/zzzzzzzz": "1"}}))
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "key", "right"),
    [
        ("labels", "fluxqueue/duration", "annotation"),
        ("annotations", "fluxqueue/managed", "label"),
    ],
)
def test_a_key_in_the_wrong_place_is_refused(place: str, key: str, right: str) -> None:
    """Silently ignoring it would run the workload otherwise than its author meant."""
    with pytest.raises(InvalidInput, match=f"read as an? {right}"):
        read_wishes(bare_pod(meta={place: {key: "1"}}))


def test_what_we_write_ourselves_is_no_mistake() -> None:
    """Manifests exported from a cluster carry our annotations."""
    written = {
        "fluxqueue/jobid": "7",
        "fluxqueue/nodes": "n1",
        "fluxqueue/author-suspended": "true",
    }
    assert read_wishes(bare_pod(meta={"annotations": written})) == Wishes()


def test_who_cannot_be_suspended_cannot_start_anew() -> None:
    """A bare Pod, and Pods and Jobs of a group. A Job can, and its template may say so."""
    said = {"fluxqueue/on-node-loss": "requeue"}
    assert read_wishes(batch_job(template_meta={"annotations": said})).restarts_on_loss
    assert not read_wishes(batch_job(meta={"annotations": {**said, **_REPLACE}})).restarts_on_loss
    pod = bare_pod(meta={"annotations": said})
    with pytest.raises(InvalidInput, match="only what can be suspended"):
        kind_of(pod).held(pod, read_wishes(pod), "")
    group = {"fluxqueue/pod-group": "g", "fluxqueue/group-size": "5"}
    part = batch_job(meta={"annotations": said, "labels": group})
    with pytest.raises(InvalidInput, match="only what can be suspended"):
        kind_of(part).held(part, read_wishes(part), "")
    with pytest.raises(InvalidInput, match="'later' is not allowed"):
        read_wishes(batch_job(meta={"annotations": {"fluxqueue/on-node-loss": "later"}}))


_REPLACE = {"fluxqueue/on-node-loss": "replace"}
