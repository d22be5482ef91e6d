"""Jobs made from batch scripts: where their pods go, and arrays of independent tasks."""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from fluxqueue.client import AsyncClient
from fluxqueue.client.batch.job_of_script import manifest_of
from fluxqueue.client.batch.script import read_script
from fluxqueue.client.batch.script_request import translate
from fluxqueue.client.batch.site_names import SiteNames
from fluxqueue.kube.resources import SECRETS, SERVICES
from tests.support.e2e.objects import FOR_EVER, NOTE, QUICK, Obj
from tests.support.e2e.space import Space
from tests.support.host_programs import HOST, host_programs, keep_running


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


MANY = """#!/bin/sh
#SBATCH -J many -N 2 -n 4 --mem=64M
echo "one body on $(scontrol show hostnames | wc -l) nodes"
srun -l sh -c 'echo "node $SLURM_NODEID"' | sort
"""


@pytest.mark.skipif(not shutil.which("busybox"), reason="busybox is not installed")
async def test_a_script_over_several_nodes_runs_once(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its programs really run. What connects its pods goes with the Job."""
    if space.world.kind == "real":
        pytest.skip("a control plane without kubelets has no logs")
    keep_running(monkeypatch)
    (tmp_path / "many.sh").write_text(MANY)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        environ = {"FLUXQUEUE_FIRST": "127.0.0.1", "FLUXQUEUE_PORT": str(probe.getsockname()[1])}
    async with (
        host_programs(space.client, space.name, environ),
        AsyncClient(kubeconfig=space.world.kubeconfig, namespace=space.name) as client,
    ):
        handle = await client.submit(tmp_path / "many.sh", image=HOST)
        for resource in (SECRETS, SERVICES):
            found = (await space.client.list(resource, space.name)).items
            owners = [one["metadata"]["ownerReferences"][0]["uid"] for one in found]
            assert owners == [handle.uid]
        await handle.wait()
        assert handle.state == "Completed"
        assert [line.text async for line in handle.logs() if line.index == 0] == [
            "one body on 2 nodes", "0: node 0", "1: node 0", "2: node 1", "3: node 1",
        ]  # fmt: skip
    await space.delete("many")
    for resource in (SECRETS, SERVICES):
        await space.until_gone(resource, found[0]["metadata"]["name"])


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
