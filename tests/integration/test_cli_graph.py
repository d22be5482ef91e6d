"""``fluxqueue graph`` and ``resource-query --from-cluster``, as typed, on an embedded cluster."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from fluxion.formats.jgf import read_jgf
from fluxqueue.fluxjob.request import Toleration
from fluxqueue.jobspec import Count, Jobspec, NodeDemand, Resource
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import NODES, PODS
from localcluster import LocalCluster, LocalClusterConfig, NodeShape
from tests.support.workloads import bare_pod, container

JOBSPEC = """version: 9999
resources: [{type: slot, count: 1, label: default, with: [{type: cpu, count: 1500}]}]
attributes: {system: {duration: 60}}
tasks: [{command: [app], slot: default, count: {per_slot: 1}}]
"""


@pytest_asyncio.fixture
async def folder(tmp_path: Path) -> AsyncIterator[Path]:
    """A folder with the kubeconfig of a running cluster of two nodes."""
    nodes = [NodeShape("n1"), NodeShape("n2")]
    config = LocalClusterConfig(nodes=nodes, run_controllers=False, run_scheduler=False)
    async with LocalCluster(config) as running:
        running.write_kubeconfig(tmp_path / "kubeconfig")
        yield tmp_path


async def typed(folder: Path, *words: str, text: str = "") -> tuple[int, str, str]:
    """Run one command line there. Status, output and errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, cwd=folder,
        env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig")},
    )  # fmt: skip
    out, errors = await asyncio.wait_for(process.communicate(text.encode()), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_export_and_pictures(folder: Path) -> None:
    """JGF that loads again, to standard output or a file, and the two kinds of picture."""
    status, out, errors = await typed(folder, "graph")
    assert (status, errors) == (0, "")
    graph = read_jgf(out)
    assert {"/cluster0/n1", "/cluster0/n2"} <= set(graph.all_paths())

    for name, start in (("g.json", b"{"), ("g.svg", b"<?xml"), ("g.png", b"\x89PNG")):
        status, out, errors = await typed(folder, "graph", "-o", name)
        assert (status, errors) == (0, "")
        assert out.startswith(f"wrote {name}")
        assert (folder / name).read_bytes().startswith(start)
    assert json.loads((folder / "g.json").read_bytes())["graph"]["nodes"]


@pytest.mark.cases_long("other refusals, each in a process of its own")
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("-o", "g.gif"), "g.gif: invalid output format .gif. Fix: one of .json, .svg, .png"),
        (("-o", "nowhere/g.svg"), "nowhere/g.svg: cannot be written"),
        (("--level", "row"), "'row' is not a known level. Fix: write NAME=LABEL"),
    ],
)
async def test_refusals(folder: Path, words: tuple[str, ...], complaint: str) -> None:
    """Refused in a sentence, with the way out."""
    status, _, errors = await typed(folder, "graph", *words)
    assert status != 0
    assert complaint in " ".join(errors.split())
    assert "Traceback" not in errors


async def test_what_if_on_the_cluster(folder: Path) -> None:
    """resource-query asks what would fit the cluster as it is."""
    (folder / "job.yaml").write_text(JOBSPEC)
    words = ("resource-query", "--from-cluster", "--shares", "-P", "pack", "-F", "rlite", "-d")
    status, out, errors = await typed(
        folder, *words, text="match allocate job.yaml\nmatch allocate job.yaml\n"
    )
    assert (status, errors) == (0, "")
    assert out.count("RESOURCES=ALLOCATED") == 2
    assert out.count('"shares": {"cpu": {"0": 1500}}') == 2


async def test_the_levels(folder: Path) -> None:
    """Each configured level with its places. What no node is labelled for has none."""
    status, out, errors = await typed(folder, "graph", "--levels", "--level", "row=my.org/row")
    assert (status, errors) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["LEVEL", "PLACES", "NODES", "UNKNOWN", "LABELS"],
        ["row", "0", "0", "2", "my.org/row"],
        ["node", "2", "2", "0", "kubernetes.io/hostname"],
    ]


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_one_jobspec_gets_the_cycle_s_answer(folder: Path) -> None:
    """As from ``kubectl get fluxjob -o jsonpath={.spec.jobspec}``: taints, pods of others and the
    pod's own tolerations count. The exit status says now, later or never."""
    words = ("resource-query", "--from-cluster", "--jobspec", "-")

    async def ask(request: Jobspec) -> tuple[int, str]:
        status, out, errors = await typed(folder, *words, text=json.dumps(render(request)))
        assert errors == ""
        return status, out.strip()

    plain = equal_slots(2, {"cpu": 3000, "pods": 1})
    spread = replace(
        plain, resources=(Resource("node", Count(2, 2), equal_slots(1, {"cpu": 3000}).resources),)
    )
    assert await ask(spread) == (0, "now: 2 slots of 3 cpu, 1 on each of 2 nodes, on n[1-2]")

    config = load_config(str(folder / "kubeconfig"))
    async with KubeClient(config) as client:
        taint = {"key": "gpu", "value": "", "effect": "NoSchedule"}
        await client.patch(NODES, None, "n1", {"spec": {"taints": [taint]}})
        status, text = await ask(spread)
        assert status == 4
        assert text.startswith("never: ")
        tolerant = NodeDemand(tolerations=(Toleration("gpu", "Exists"),))
        assert (await ask(replace(spread, where=tolerant)))[0] == 0

        other = bare_pod(
            "other",
            nodeName="n2",
            restartPolicy="Always",
            containers=[container(requests={"cpu": "30"})],
        )
        other["metadata"] = {"name": "other", "namespace": "default"}
        await client.create(PODS, "default", other)
        status, text = await ask(equal_slots(1, {"cpu": 3000}))
        assert status == 3, "only n2 is left, and others use it"
        assert text.startswith("later")
    status, _, errors = await typed(folder, *words, text="resources: 5")
    assert status == 1
    assert "jobspec" in errors
    status, _, errors = await typed(folder, "resource-query", "--jobspec", "x")
    assert (status, "--from-cluster --jobspec FILE" in errors) == (1, True)
