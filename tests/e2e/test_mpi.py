"""MPIJobs of the shapes that our predecessors ran: queued whole, released whole, freed at the end.

LAMMPS and AMG as flux-k8s has them, GROMACS without any requests. The operator is played by
``operators``.
"""

from __future__ import annotations

import pytest

from fluxqueue.kube.resources import PODS
from localcluster import NodeShape
from tests.support.e2e.custom_kinds import MPI_JOB
from tests.support.e2e.group_members import phases
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod
from tests.support.e2e.operators import Operators
from tests.support.e2e.owned_pods import ASKS, all_are, create, until_told, until_waiting
from tests.support.e2e.space import Space
from tests.support.e2e.world import World

LATE = {"pool": "late"}
NODES = ("late-1", "late-2")
SLOTS = (
    "SELECT count(DISTINCT a.id) AS runs, count(*) AS slots,"
    " count(*) FILTER (WHERE s.state <> 'returned') AS held"
    " FROM fluxjobs f JOIN allocations a USING (uid)"
    " JOIN allocation_slots s ON s.allocation_id = a.id"
    " WHERE f.namespace = :namespace AND f.name = :name"
)


def part(replicas: int, requests: Obj, run: Obj) -> Obj:
    """A replica spec on the nodes of this module."""
    pod = bare_pod("x", nodeSelector=LATE, run=run)
    resources = {"requests": requests} if requests else {}
    pod["spec"]["containers"] = [{"name": "main", "image": "none", "resources": resources}]
    notes = {"annotations": pod["metadata"]["annotations"]}
    return {"replicas": replicas, "template": {"metadata": notes, "spec": pod["spec"]}}


async def fill(space: Space) -> None:
    """Nothing else fits onto the nodes of this module."""
    for name in NODES:
        shape = NodeShape(name, cpu="32", memory="64Gi", pods=600, labels=LATE)
        await space.world.late_nodes.add(shape)
        await space.create(bare_pod(f"fill-{name}", cpu="32", nodeSelector=LATE, run=FOR_EVER))
    await all_are(space, "Running", len(NODES))


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize(
    ("name", "workers", "launcher", "worker", "policy"),
    [
        ("lammps", 24, {"cpu": "12", "memory": "24Gi"}, {"cpu": "1", "memory": "2Gi"}, "AtStartup"),
        ("gromacs", 4, {}, {}, "WaitForWorkersReady"),
        pytest.param(
            *("amg", 1020, {"cpu": "6", "memory": "12Gi"}, {"cpu": "50m"}, "WaitForWorkersReady"),
            marks=pytest.mark.long("its 1,020 workers are made one by one, as its operator does"),
        ),
    ],
)
async def test_launcher_and_workers_are_one(
    space: Space,
    late: World,
    name: str,
    workers: int,
    launcher: Obj,
    worker: Obj,
    policy: str,
) -> None:
    """No pod while it waits, one allocation for all, and nothing of it left after its launcher."""
    await fill(space)
    spec = {
        "launcherCreationPolicy": policy,
        "mpiReplicaSpecs": {
            "Launcher": part(1, launcher, {"duration": "1500ms"}),
            "Worker": part(workers, worker, FOR_EVER),
        },
    }
    async with Operators(space) as operators:
        made = await create(space, MPI_JOB, name, spec)
        assert made["metadata"]["labels"] == ASKS
        waiting = await until_waiting(space, f"{name}-mpijob")
        assert waiting["spec"]["size"] == workers + 1
        assert await phases(space) == {f"fill-{node}": "Running" for node in NODES}
        for node in NODES:
            await space.client.delete(PODS, space.name, f"fill-{node}")
        await until_told(space, f"{name}-mpijob", "Completed")
        (found,) = await space.world.rows(SLOTS, namespace=space.name, name=f"{name}-mpijob")
        assert found == {"runs": 1, "slots": workers + 1, "held": 0}
        assert not operators.refused
