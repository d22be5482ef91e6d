"""The ``review`` task over real rows: who did not pass by admission, a defect in an answer."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PLACEMENT_REVIEWS
from fluxqueue.process.pacing import REVIEW_SHARE, TimeShare
from fluxqueue.worker import review_tasks as under_test
from localcluster import LocalCluster
from tests.support.hostile_jobspecs import slot
from tests.support.rows import Rows, cpu_node
from tests.support.waiting import eventually
from tests.support.workers import is_released, rows_of, submit, worker

pytestmark = pytest.mark.usefixtures("definitions")

JOBSPEC = {
    "resources": [
        {
            "type": "slot",
            "count": 1,
            "label": "a",
            "with": [{"type": "cpu", "count": 1, "unit": "m"}],
        }
    ]
}


async def _ask(rows: Rows, admin: KubeClient, name: str, **spec: Any) -> dict[str, Any]:
    """Make a review and pass it on twice, as a controller may that is restarted."""
    body = {
        "apiVersion": PLACEMENT_REVIEWS.api_version,
        "kind": PLACEMENT_REVIEWS.kind,
        "metadata": {"name": name},
        "spec": spec,
    }
    made = await admin.create(PLACEMENT_REVIEWS, "default", body)
    for _ in range(2):
        await rows.database.defer_review("default", name, made["metadata"]["uid"])

    async def look() -> dict[str, Any]:
        found = await admin.get(PLACEMENT_REVIEWS, "default", name)
        return found.get("status") or {}

    answered: dict[str, Any] = await eventually(look, f"an answer to {name}")
    return answered


async def test_a_defect_in_an_answer_is_told_and_costs_nobody_else(
    database_url: str, cluster: LocalCluster, admin: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not tried again. The next question is answered, the queue goes on, and no task of
    theirs is left."""

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    async with rows_of(database_url) as rows, worker(database_url, cluster):
        await rows.add_nodes(cpu_node("n0"))
        with monkeypatch.context() as patched:
            patched.setattr(under_test, "answer", broken)
            told = await _ask(rows, admin, "first", jobspec=JOBSPEC)
        assert (told["reason"], "verdict" in told) == ("Failed", False)
        told = await _ask(rows, admin, "second", jobspec=JOBSPEC)
        assert (told["verdict"], told["nodes"]) == ("Now", "n0")
        await submit(rows, admin, "a")
        await eventually(lambda: is_released(admin, "a"), "the queue goes on")

        async def are_done() -> bool:
            left = (
                "SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE task_name = 'review'"
            )
            return bool(await rows.value(left) == 0)

        await eventually(are_done, "all tasks are done")


SIZES = random.Random(3).choices((5, 6, 7, 7, 9, 11), k=42)
COSTLY = [
    slot(1, f"c{n}", {"type": "cpu", "count": size, "unit": "m"}) for n, size in enumerate(SIZES)
]
"""A puzzle: slots of nearly equal size of which not quite all fit."""


async def test_an_answer_whose_time_is_over_is_given_up_and_the_queue_goes_on(
    database_url: str, cluster: LocalCluster, admin: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so in words. The next question is answered, and a job is released."""
    monkeypatch.setattr(under_test, "ANSWER_S", 0.0)
    async with rows_of(database_url) as rows, worker(database_url, cluster):
        await rows.add_nodes(*(cpu_node(f"n{n}", cpu=16) for n in range(20)))
        told = await _ask(rows, admin, "costly", jobspec={**JOBSPEC, "resources": COSTLY})
        assert told["reason"] == "TooComplex"
        monkeypatch.undo()
        told = await _ask(rows, admin, "cheap", jobspec=JOBSPEC)
        assert told["verdict"] == "Now"
        await submit(rows, admin, "a")
        await eventually(lambda: is_released(admin, "a"), "the queue goes on")


def test_reviews_leave_the_matcher_most_of_its_time() -> None:
    """However many are asked: after an answer of a second, the next one begins four later."""
    clock = ManualClock()
    share = TimeShare(clock, REVIEW_SHARE)
    with share.work():
        clock.advance(1.0)
    assert share.left_s == pytest.approx(4.0)


@pytest.mark.parametrize(("crashes", "reason"), [(1, "Fits"), (2, "TooComplex")])
async def test_a_review_that_ended_two_workers_is_given_up(
    database_url: str, cluster: LocalCluster, admin: KubeClient, crashes: int, reason: str
) -> None:
    """``rescue_stalled`` counts them in the task's arguments."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(cpu_node("n0"))
        body = {
            "apiVersion": PLACEMENT_REVIEWS.api_version,
            "kind": PLACEMENT_REVIEWS.kind,
            "metadata": {"name": "why"},
            "spec": {"jobspec": JOBSPEC},
        }
        made = await admin.create(PLACEMENT_REVIEWS, "default", body)
        await rows.database.defer_review("default", "why", made["metadata"]["uid"])
        await rows.execute(
            "UPDATE procrastinate.procrastinate_jobs SET args = args || jsonb_build_object("
            f"'crashes', {crashes}) WHERE task_name = 'review'"
        )
        async with worker(database_url, cluster):

            async def look() -> str | None:
                found = await admin.get(PLACEMENT_REVIEWS, "default", "why")
                told: str | None = (found.get("status") or {}).get("reason")
                return told

            assert await eventually(look, "an answer") == reason


async def test_who_did_not_pass_by_admission_learns_no_names(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """The user's rights are not known: the answer names no FluxJob and nothing in the way."""
    async with rows_of(database_url) as rows, worker(database_url, cluster):
        await rows.add_nodes(cpu_node("n0", cpu=1))
        await submit(rows, admin, "a")
        await eventually(lambda: is_released(admin, "a"), "it has its node")
        told = await _ask(rows, admin, "by-name", fluxJob="a-job")
        assert told["reason"] == "NotFound"
        told = await _ask(rows, admin, "in-the-way", jobspec=JOBSPEC)
        assert told["verdict"] == "Later"
        assert [one["name"] for one in told["blockers"]] == ["another namespace's job"]
