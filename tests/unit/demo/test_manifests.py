"""The scenes as data: valid for admission, the same for the same seed, and of the promised mix."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from localcluster.__main__ import _pool
from localcluster.nodes.pod_simulation import script_of
from localcluster.nodes.shape import node_object

from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.nodepools.pool import read_node_pool
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.quantity import to_base_units
from fluxqueue_devtools.demo.manifests import (
    BATCH_CORES,
    IMPOSSIBLE_CORES,
    Scene,
    batch_scene,
    node_arguments,
    pi_scene,
    pool_scene,
    retry_scene,
)

SCENES = [pi_scene(), retry_scene(), batch_scene(200, 2026), pool_scene()]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.namespace)
def test_every_manifest_can_be_taken_in(scene: Scene) -> None:
    """Each Job becomes a request of one slot for each of its pods: every Job is a gang."""
    for one in scene.submissions:
        spec = one.manifest["spec"]
        request = BATCH_JOB.to_request(dict(one.manifest))
        assert request.size == spec["parallelism"] == spec["completions"]


def test_the_pool_is_what_the_cluster_can_add() -> None:
    """As the FluxNodePool says, with the label that the job chooses. The job needs all of it."""
    arguments = node_arguments()
    pool = _pool(arguments[arguments.index("--node-pool") + 1])
    scene = pool_scene()
    assert scene.node_pool is not None
    told = read_node_pool(scene.node_pool["metadata"]["name"], scene.node_pool["spec"])
    shape = node_object(pool.node(1), "", datetime(2026, 1, 1, tzinfo=UTC))
    allocatable = shape["status"]["allocatable"]
    assert (
        told.capacity.items()
        <= {
            name: to_base_units(name, value, where="") for name, value in allocatable.items()
        }.items()
    )
    assert told.labels.items() <= shape["metadata"]["labels"].items()
    assert (told.most, told.name) == (pool.most, pool.name)
    (one,) = scene.submissions
    assert BATCH_JOB.to_request(dict(one.manifest)).size == told.most
    assert scene.new_nodes == tuple(pool.node(n).name for n in range(1, told.most + 1))


def test_the_batch_is_drawn_by_its_seed() -> None:
    """The same seed gives the same Jobs, another seed others."""
    assert batch_scene(50, 1) == batch_scene(50, 1)
    assert batch_scene(50, 1) != batch_scene(50, 2)


@pytest.mark.parametrize("jobs", [2, 30, 200])
def test_the_batch_has_its_number_of_jobs_and_one_impossible(jobs: int) -> None:
    """Names differ, times never go back, and only the first needs more than a node has."""
    submissions = batch_scene(jobs, 3).submissions
    assert len({one.name for one in submissions}) == len(submissions) == jobs
    assert [one.at_s for one in submissions] == sorted(one.at_s for one in submissions)
    cores = [
        dict(slot_kinds(BATCH_JOB.to_request(dict(one.manifest)))[0].needs)["cpu"] / 1000
        for one in submissions
    ]
    assert cores[0] == IMPOSSIBLE_CORES > BATCH_CORES
    assert max(cores[1:]) <= BATCH_CORES
    assert [one.must_end for one in submissions].count("Unsatisfiable") == 1


def test_failing_pods_are_told_how_to_fail() -> None:
    """The embedded cluster reads the scripts as they are meant: once, and always."""
    once, *_, always = retry_scene().submissions
    template = dict(once.manifest["spec"]["template"])
    script = script_of(template)
    assert (script.fail_times, script.exit_code) == (1, 139)
    script = script_of(dict(always.manifest["spec"]["template"]))
    assert (script.fail_times, script.exit_code, always.must_end) == (0, 139, "Failed")


def test_the_cluster_gets_the_nodes_that_the_scenes_count_on() -> None:
    """One ``--node`` argument for each node of each scene, except those that must come."""
    arguments = node_arguments()
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    names = {word.partition(",")[0] for option, word in pairs if option == "--node"}
    assert names == set(pi_scene().nodes) | set(batch_scene(2, 1).nodes)
