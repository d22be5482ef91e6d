"""Annotations as spellings of a jobspec's shape: what they make of it, what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, parse_levels
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.parse import parse_document
from fluxqueue.jobspec.render import render
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.pod_request import check_levels
from fluxqueue.workload.site import Site
from fluxqueue_webhook.admit import admit
from tests.support.jobspecs import draw
from tests.support.workloads import admission_review, batch_job, container

POOLS = "{cpu=1500 pods=1}"
CORE = {"type": "core", "count": 1}


def _slot(count: int, label: str = "s") -> dict[str, Any]:
    return {"type": "slot", "count": count, "label": label, "with": [CORE]}


def _node(count: int, *inside: dict[str, Any]) -> dict[str, Any]:
    return {"type": "node", "count": count, "with": list(inside)}


def _job(**wishes: Any) -> dict[str, Any]:
    annotations = {
        f"fluxqueue/{key.replace('_', '-')}": value if isinstance(value, str) else json.dumps(value)
        for key, value in wishes.items()
    }
    return batch_job(
        meta={"annotations": annotations},
        parallelism=4,
        completions=4,
        pod={"containers": [container(requests={"cpu": "1500m"})]},
    )


def _request(**wishes: Any) -> Jobspec:
    request = BATCH_JOB.to_request(_job(**wishes))
    assert parse_document(render(request)) == request
    return request


@pytest.mark.parametrize(
    ("wishes", "drawn"),
    [
        ({}, "task[4]"),
        ({"spread": "node"}, "node[4] > task[1]"),
        ({"within": "zone"}, "zone[1] > task[4]"),
        ({"within": "topology.kubernetes.io/zone"}, "zone[1] > task[4]"),
        ({"within": "cloud.google.com/gce-topology-subblock"}, "rack[1] > task[4]"),
        ({"within": "kubernetes.io/hostname"}, "node[1] > task[4]"),
        ({"within": "node", "exclusive": "true"}, "node[1]! > task[4]"),
        ({"within": "rack", "spread": "node"}, "rack[1] > node[4] > task[1]"),
        (
            {"within": "rack", "spread": "node", "exclusive": "true"},
            "rack[1] > node[4]! > task[1]",
        ),
    ],
)
def test_the_plain_request(wishes: dict[str, str], drawn: str) -> None:
    request = _request(**wishes)
    assert draw(request) == drawn + POOLS
    assert not request.is_node_exclusive


def test_whole_nodes_without_a_number_of_nodes() -> None:
    """As many pods on each as fit: no tree says that, so an attribute does."""
    request = _request(exclusive="true")
    assert draw(request) == f"task[4]{POOLS}"
    assert request.is_node_exclusive


def test_whole_cores() -> None:
    assert draw(_request(cores="whole")) == "task[4]{cpu=2000 pods=1}"
    own = [{**_slot(4), "with": [{"type": "cpu", "count": 2001, "unit": "m"}]}]
    assert draw(_request(cores="whole", jobspec=own)) == "s[4]{cpu=3000 pods=1}"


def test_a_preferred_level_is_kept_for_the_matcher() -> None:
    request = _request(prefer_within="topology.kubernetes.io/rack", within="zone")
    assert (draw(request), request.prefer_within) == (f"zone[1] > task[4]{POOLS}", "rack")


@pytest.mark.parametrize(
    ("wishes", "drawn"),
    [
        ({"within": "zone", "jobspec": [_node(2, _slot(2))]}, "zone[1] > node[2] > s[2]"),
        ({"spread": "node", "jobspec": [_slot(4)]}, "node[4] > s[1]"),
        ({"spread": "node", "jobspec": [_node(4, _slot(1))]}, "node[4] > s[1]"),
        ({"exclusive": "true", "jobspec": [_node(2, _slot(2))]}, "node[2]! > s[2]"),
        ({"within": "node", "jobspec": [_node(1, _slot(4))]}, "node[1] > s[4]"),
    ],
)
def test_on_an_author_s_own_jobspec(wishes: dict[str, Any], drawn: str) -> None:
    assert draw(_request(**wishes)) == drawn + POOLS


def test_a_level_by_the_name_that_an_administrator_gave() -> None:
    levels = parse_levels("hall=my.org/hall,row=my.org/row|my.org/aisle")
    for word in ("row", "my.org/aisle"):
        job = _job(within=word)
        check_levels(read_wishes(job), levels)
        drawn = draw(BATCH_JOB.to_request(job, site=Site(levels=levels)))
        assert drawn == f"row[1] > task[4]{POOLS}"


def test_levels_that_were_taken_away_later_stay_in_the_request() -> None:
    """What was admitted is a request still. The matcher says that there is no such level."""
    assert draw(BATCH_JOB.to_request(_job(within="row"), site=Site(levels=()))).startswith(
        "row[1] > "
    )


def _admit(job: dict[str, Any]) -> None:
    check_levels(read_wishes(job), DEFAULT_LEVELS)
    BATCH_JOB.to_request(job)


@pytest.mark.parametrize(
    ("wishes", "field", "words"),
    [
        ({"within": "row"}, "within", "'row' is no level of this cluster"),
        ({"within": "row"}, "within", "region, zone, block, rack, nvlink, node"),
        ({"within": "my.org/row"}, "within", "FLUXQUEUE_LEVELS"),
        ({"prefer_within": "row"}, "prefer-within", "'row' is no level"),
        ({"prefer_within": "ro w"}, "prefer-within", "'ro w' is no level"),
        ({"cores": "half"}, "cores", 'allowed is "whole"'),
        ({"within": "node", "spread": "node"}, "within", "4 nodes or more"),
        ({"spread": "node", "jobspec": [_node(2, _slot(2))]}, "spread", "2 slots on one"),
        ({"within": "node", "jobspec": [_node(2, _slot(2))]}, "within", "2 nodes or more"),
        (
            {"within": "rack", "jobspec": [{"type": "zone", "count": 1, "with": [_slot(4)]}]},
            "within",
            "'zone' does not stand below 'rack'",
        ),
    ],
)
def test_refused_at_admission_with_the_field_and_the_way_out(
    wishes: dict[str, Any], field: str, words: str
) -> None:
    job = _job(**wishes)
    with pytest.raises(InvalidInput) as caught:
        _admit(job)
    assert caught.value.where == f"metadata.annotations[fluxqueue/{field}]"
    assert words in str(caught.value)
    response = admit(admission_review(job)).review["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert words in response["status"]["message"]


def test_admission_knows_the_configured_levels() -> None:
    review = admission_review(_job(within="row"))
    settings = AdmitSettings(levels=parse_levels("row=my.org/row"))
    assert admit(review, settings).verdict == "taken"
    assert admit(review).verdict == "refused"
