"""``fluxqueue check`` on a live system: silent in health, and it finds what is broken by hand."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.checking import check
from fluxqueue.clock import SystemClock
from fluxqueue.kube.resources import FLUXJOBS
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.space import Space

PATIENCE_S = 30.0
"""Longer than anything is in transit on a busy machine. In health nothing waits for it."""
BROKEN_S = 8.0
"""The same where something is broken for good: so long its finding takes."""


async def run_check(space: Space, *more: str, patience_s: float = PATIENCE_S) -> tuple[int, str]:
    """Run the command as a user does. Exit code and output."""
    world = space.world
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fluxqueue", "check"),
        *("--database-url", world.stack.database_url),
        *("--kubeconfig", str(world.kubeconfig)),
        *("--patience", f"{patience_s:g}", *more),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def findings(space: Space, patience_s: float = PATIENCE_S) -> set[tuple[str, str]]:
    """(invariant, subject) of everything that is broken and stays so."""
    world = space.world
    found = await check(world.database, world.client, SystemClock(), patience_s=patience_s)
    return {finding.key for finding in found}


async def test_a_running_system_is_in_order(space: Space) -> None:
    """While a Job runs the command says so, exits 0, and its JSON is an empty list."""
    await space.create(job("steady", pods=3, cpu="2", run=FOR_EVER))
    await space.until_state("steady", "Running")
    code, out = await run_check(space)
    # Before it, earlier tests of this world may have left a line on their expected starts.
    assert (code, out.splitlines()[-1].partition(",")[0]) == (0, "all invariants hold")
    code, out = await run_check(space, "--json")
    assert code == 0
    assert [one for one in json.loads(out) if one["invariant"] != "expected starts"] == []


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_slot_that_leaked_is_found(space: Space) -> None:
    """A slot more than the Job can use: found by the rows' account of the Job, exit code 1."""
    await space.create(job("leaky", cpu="2", pool="single", run=FOR_EVER))
    await space.until_state("leaky", "Running")
    await space.until_nothing_pending()
    await space.world.rows(
        "INSERT INTO allocation_slots (allocation_id, number, node, resources)"
        " SELECT allocation_id, 99, node, resources FROM allocation_slots s"
        " JOIN allocations a ON a.id = s.allocation_id JOIN fluxjobs f USING (uid)"
        " WHERE f.namespace = :namespace AND a.is_live RETURNING number",
        namespace=space.name,
    )
    try:
        code, out = await run_check(space, "--json", patience_s=BROKEN_S)
        (finding,) = [one for one in json.loads(out) if one["severity"] == "broken"]
        assert code == 1
        assert (finding["invariant"], finding["subject"]) == (
            "slots that are not needed",
            f"Job {space.name}/leaky",
        )
    finally:
        await space.world.rows("DELETE FROM allocation_slots WHERE number = 99 RETURNING number")


async def test_a_fluxjob_that_lies_is_found(space: Space) -> None:
    """A user with rights on the status writes another state into it."""
    await space.create(job("honest", run=FOR_EVER))
    true = await space.until_state("honest", "Running")
    await space.until_nothing_pending()  # nothing writes the truth over it

    async def write(state: Any) -> None:
        await space.client.patch(
            FLUXJOBS,
            space.name,
            true["metadata"]["name"],
            {"status": {"state": state}},
            subresource="status",
        )

    await write("Completed")
    subject = f"FluxJob {space.name}/{true['metadata']['name']}"
    assert await findings(space, BROKEN_S) == {("FluxJob disagrees with its row", subject)}
    await write("Running")
    assert await findings(space) == set()


async def test_without_a_database_the_way_out_is_named(tmp_path: Path) -> None:
    """Nothing given and no ``up`` around: exit code 2 and one line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fluxqueue", "check"),
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, err = await process.communicate()
    assert process.returncode == 2
    assert err.decode().startswith("fluxqueue: DATABASE_URL: no database is configured. Fix: ")
    assert len(err.decode().splitlines()) == 1
