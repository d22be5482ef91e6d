"""What a Job costs: requests of each part by verb and resource, admissions, SQL statements.

The processors of a busy cluster are full, so what a Job costs decides how many Jobs start. A ratio
of times needs an idle machine. These counts are the same on a busy one, so a further request or
statement for each Job fails here.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from benchmarks.throughput.meters import SqlMeter
from tests.support.chart_rights import GROUPED
from tests.support.e2e.health import assert_nothing_left
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.rights import RightsWorld, kept_rights_world
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("a world of its own, whose API server writes down all that our parts ask"),
    pytest.mark.xdist_group("costs"),
]

JOBS_AT_ONCE = 20
"""More than a rush (``pacing.RUSH``), so their first status updates are put off."""
PODS = 4
STATEMENTS = 8.0
"""SQL statements for each Job of a burst, beside those of ``STATEMENTS_PER_S``.

A task for each Job, with its transaction, is five more."""
STATEMENTS_PER_S = 40.0
"""SQL statements in each second of a burst: idle loops, and tasks in rounds of a second or two.

So their number grows with the time that the burst takes, and not with its Jobs. On an idle machine
it takes three seconds, with 6 to 10 statements for each Job. On a real cluster that was busy it
took twelve, with 26."""
UNSETTLED = """
SELECT count(*) AS unsettled FROM fluxjobs WHERE namespace = :namespace
  AND (ended_at IS NULL OR coalesce((published ->> 'version')::bigint, 0) < version
       OR release_at IS NOT NULL OR reconcile_at IS NOT NULL OR status_due_at IS NOT NULL)
"""
_REVIEWS = re.compile(r'_reviews_total\{kind="(\w+)",verdict="(\w+)"\} (\d+)')

OF_EACH = {
    "controller create fluxjobs": 1,
    "worker patch jobs": 1,
    "worker create events": 1,
    "worker update fluxjobs/status": 2,
    "worker patch fluxjobs/status": 1,
    "worker list events": 0.5,
}
"""Requests of our parts for each Job of a burst.

Events are read where a busy Job controller has not created pods after five seconds, once for all.
There is no other read.

The status shows the start and the end. Most starts of a burst are put off, and then the end
replaces them. Two tasks may write the end at once: the second one is refused, and patches.
"""


@dataclass(frozen=True, slots=True)
class Work:
    """A kind of Job, and what it may cost: requests and admissions for each Job."""

    pods: int
    more: Mapping[str, Any]
    requests: Mapping[str, float]
    reviews: Mapping[str, int]


IN_A_GROUP = {"worker create podgroups": 1} if os.environ.get(GROUPED) == "group" else {}
"""A placed gang that kube-scheduler binds as a whole."""

SPREAD = {"wishes": {"match-policy": "spread"}}
WORKS = {
    "one pod": Work(1, {}, OF_EACH, {"Job taken": 1}),
    "one node": Work(PODS, {}, OF_EACH, {"Job taken": 1}),
    "across nodes, placed": Work(
        PODS,
        {**SPREAD, "completionMode": "Indexed"},
        {**OF_EACH, **IN_A_GROUP},
        {"Job taken": 1, "Pod placed": PODS},
    ),
    "across nodes, gated": Work(
        PODS,
        SPREAD,
        # Its start is not put off: only its status shows its nodes. Then its pods run.
        {**OF_EACH, "worker patch pods": PODS, "worker update fluxjobs/status": 3},
        {"Job taken": 1},
    ),
}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def rights(
    cluster_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RightsWorld]:
    """A world of this module's own, because the API server writes down what our parts ask."""
    async with kept_rights_world(cluster_kind, "costs", tmp_path_factory, workers=1) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="session")
async def space(rights: RightsWorld) -> AsyncIterator[Space]:
    """A namespace of the test's own, in that world."""
    made = await make_space(rights.world)
    yield made
    await remove_space(made)
    await assert_nothing_left(rights.world)


@pytest.mark.parametrize("name", WORKS)
async def test_a_job_costs_no_more_than_it_did(
    rights: RightsWorld, space: Space, name: str
) -> None:
    work, stack = WORKS[name], rights.world.stack
    assert stack.postgres is not None
    meter = SqlMeter(stack.postgres)
    await meter.begin()
    try:
        before = await _reviews(rights)
        await _run(space, work)
        statements = meter.so_far()
    finally:
        await meter.end()
    reviews = await _reviews(rights) - before
    asked = [one for one in rights.uses() if one.namespace == space.name]
    requests = Counter(f"{one.part} {one.verb} {one.resource}" for one in asked)
    assert _too_many(requests, work.requests) == {}
    assert _too_many(reviews, work.reviews) == {}
    own = sum(n for text, n in statements.by_text.items() if "AS unsettled" in text)
    number, most = statements.number - own, STATEMENTS * JOBS_AT_ONCE
    print(f"{name}: {number} statements in {statements.span_s:.1f} s")
    most += STATEMENTS_PER_S * statements.span_s
    assert number <= most, statements.by_text.most_common(20)


LARGE = 200
OF_A_RELEASE = {
    "worker patch jobs": 1,
    "worker create events": 1,
    "worker update fluxjobs/status": 2,
    **IN_A_GROUP,
}
"""Four in most runs, which is 0.02 for each pod. A second status update shows that pods run."""


async def test_the_release_of_a_large_gang_has_no_request_for_a_pod(
    rights: RightsWorld, space: Space
) -> None:
    """Kubernetes creates its pods. What we ask does not grow with them."""
    body = job("large", pods=LARGE, cpu="100m", run=FOR_EVER, completionMode="Indexed", **SPREAD)
    await space.create(body)
    await space.until_running("large", LARGE)
    asked = [one for one in rights.uses() if one.namespace == space.name and one.part == "worker"]
    found = Counter(f"{one.part} {one.verb} {one.resource}" for one in asked)
    print(f"requests for the release of {LARGE} pods: {dict(found)}")
    assert {what: n for what, n in found.items() if n > OF_A_RELEASE.get(what, 0)} == {}
    assert all(found[what] == n for what, n in IN_A_GROUP.items())


def _too_many(found: Counter[str], allowed: Mapping[str, float]) -> dict[str, float]:
    """Return what there is more of than allowed, for each Job."""
    return {
        what: number / JOBS_AT_ONCE
        for what, number in found.items()
        if number > JOBS_AT_ONCE * allowed.get(what, 0)
    }


async def _run(space: Space, work: Work) -> None:
    """Run a burst of Jobs until nothing of them is left to do, not even a status update."""
    names = [f"cost-{number}" for number in range(JOBS_AT_ONCE)]
    bodies = (job(name, pods=work.pods, **work.more) for name in names)
    await asyncio.gather(*map(space.create, bodies))
    await space.until_all_complete(names)

    async def is_settled() -> bool:
        rows = await space.world.rows(UNSETTLED, namespace=space.name)
        return rows[0]["unsettled"] == 0

    await eventually(is_settled, "all Jobs have ended, and their statuses say so")


async def _reviews(rights: RightsWorld) -> Counter[str]:
    """Return how many admissions the webhook has answered, by kind and verdict."""
    data_dir = rights.world.stack.options.data_dir
    port = (data_dir / "webhook-port").read_text()
    authority = (data_dir / "certs" / "ca.crt").read_text()
    text = await asyncio.to_thread(_read, f"https://localhost:{port}/metrics", authority)
    return Counter({f"{kind} {verdict}": int(n) for kind, verdict, n in _REVIEWS.findall(text)})


def _read(url: str, authority_pem: str) -> str:
    context = ssl.create_default_context(cadata=authority_pem)
    with urllib.request.urlopen(url, context=context) as answer:
        return str(answer.read().decode())
