"""The priority of a Job is that of its pods, also if the cluster chooses it."""

from __future__ import annotations

import itertools

import pytest

from fluxqueue.kube.resources import PRIORITY_CLASSES
from tests.support.e2e.objects import bare_pod, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

USUAL = 500


@pytest.mark.long("the controller learns of a class by its watch, and Jobs are made until it has")
async def test_the_global_default_counts_for_jobs_as_for_pods(space: Space) -> None:
    """Admission of the cluster writes it into pods, and into no template."""
    usual = {"metadata": {"name": f"usual-{space.name}"}, "value": USUAL, "globalDefault": True}
    await space.client.create(PRIORITY_CLASSES, None, usual)
    try:
        await eventually(lambda: _priority_is(space, USUAL), "the class is known")
        await space.create(job("plain"))
        await space.create(bare_pod("plain-pod"))
        await space.create(job("own", wishes={"priority": "-7"}))
        for name, expected in (("plain", USUAL), ("plain-pod", USUAL), ("own", -7)):
            found = await space.until_state(name, "Completed")
            assert found["status"]["priority"] == expected, name
    finally:
        await space.client.delete(PRIORITY_CLASSES, None, usual["metadata"]["name"])
    await eventually(lambda: _priority_is(space, 0), "the class is gone")


_numbers = itertools.count()


async def _priority_is(space: Space, expected: int) -> bool:
    """Whether a new Job has this priority: the controller learns of classes by a watch."""
    name = f"try-{next(_numbers)}"
    await space.create(job(name))
    found = await space.until_state(name, "Pending", "Allocated", "Running", "Completed")
    return bool(found["status"]["priority"] == expected)
