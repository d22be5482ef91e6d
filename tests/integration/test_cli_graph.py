"""``fluxqueue graph`` and ``resource-query --from-cluster``, as typed, on an embedded cluster."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fluxqueue.graph.formats.jgf import read_jgf
from localcluster import LocalCluster, LocalClusterConfig, NodeShape

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
    """Run one command line there; status, output and errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue", *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, cwd=folder,
        env={**os.environ, "KUBECONFIG": str(folder / "kubeconfig")},
    )  # fmt: skip
    out, errors = await asyncio.wait_for(process.communicate(text.encode()), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), errors.decode()


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


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("-o", "g.gif"), "g.gif: .gif is no format that can be written (one of .json, .svg, .png"),
        (("-o", "nowhere/g.svg"), "nowhere/g.svg: cannot be written"),
        (("--level", "rack"), "'rack' is no level (zone=my.org/zone)"),
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
