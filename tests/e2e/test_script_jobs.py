"""Jobs made from batch scripts: where their pods go, and arrays of independent tasks."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

import pytest

from fluxqueue.client.batch.job_of_script import manifest_of
from fluxqueue.client.batch.script import read_script
from fluxqueue.client.batch.script_request import translate
from fluxqueue.client.batch.site_names import SiteNames
from tests.support.e2e.objects import FOR_EVER, NOTE, QUICK, Obj
from tests.support.e2e.space import Space


def of_script(
    name: str, *lines: str, run: dict[str, str] | None = None, is_each_pod: bool = False
) -> Obj:
    """The Job of a script, on the pool of small nodes, with a simulated run time."""
    text = "\n".join(["#!/bin/sh", f"#SBATCH -J {name}", *(f"#SBATCH {one}" for one in lines), "x"])
    now = datetime(2030, 1, 1)  # noqa: DTZ001
    request = translate(read_script(text, "s.sh"), SiteNames(), now, is_each_pod=is_each_pod)
    job = manifest_of(request)
    template = job["spec"]["template"]
    template["metadata"] = {
        "annotations": {f"{NOTE}{key}": one for key, one in (run or QUICK).items()}
    }
    template["spec"]["containers"][0]["image"] = "none"
    template["spec"]["nodeSelector"] = {"pool": "main"}
    return job


@pytest.mark.cases_long("other shapes")
@pytest.mark.parametrize(
    ("lines", "is_each_pod", "expected"),
    [
        (("-N 2", "-n 6"), True, [3, 3]),
        (("-n 6", "-N 2"), True, [3, 3]),
        (("-N 2 -n 5",), True, [2, 3]),
        (("-N 2 -n 5",), False, [1, 1]),
        (("-N 2 --mem=0",), False, [1, 1]),
    ],
)
async def test_pods_stand_on_so_many_nodes(
    space: Space, lines: tuple[str, ...], is_each_pod: bool, expected: list[int]
) -> None:
    """In any order of the lines, and in unequal numbers."""
    job = of_script("shape", *lines, run=dict(FOR_EVER), is_each_pod=is_each_pod)
    await space.create(job)
    pods = await space.until_running("shape", sum(expected))
    found = Counter(pod["spec"]["nodeName"] for pod in pods)
    assert sorted(found.values()) == expected
    await space.delete("shape")


async def test_an_array_that_does_not_fit_at_once_starts_with_what_fits(space: Space) -> None:
    """Its tasks are independent: as each one ends, the next one starts."""
    await space.create(of_script("sweep", "--array=0-9 -c 16"))
    await space.until_job("sweep")
    await space.until_state("sweep", "Completed")


async def test_of_a_limited_array_only_so_many_run_at_once(space: Space) -> None:
    """%N is the Job's parallelism, whatever the indexes are."""
    async with space.recording() as seen:
        await space.create(of_script("few", "--array=1-9:2%2"))
        await space.until_job("few")
        assert seen.most_at_once("few") <= 2
    found = await space.until_state("few", "Completed")
    assert found["spec"]["size"] == 1
