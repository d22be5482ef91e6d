"""Followers of a driver: the annotation, what the arguments of Spark tell, and which pods fit."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.followers import Followers, learn_followers, read_followers
from fluxqueue.workload.groups import is_follower, read_membership, read_users
from tests.support.workloads import bare_pod, batch_job, container, owner

Obj = dict[str, Any]
KEY = "fluxqueue/followers"
MIB = 1 << 20


def driver(text: str | None = None, *args: str, **spec: Any) -> Obj:
    """A pod with the annotation ``text``, or the driver of Spark with these arguments."""
    if text is not None:
        return bare_pod("main", meta={"annotations": {KEY: text}}, **spec)
    main = container(requests={"cpu": "1"}) | {"args": ["driver", *args]}
    return bare_pod("main", meta={"labels": {"spark-role": "driver"}}, containers=[main], **spec)


def test_the_annotation_says_how_many_and_what_each_requests() -> None:
    assert read_followers(bare_pod()) is None
    said = read_followers(driver(" 12 memory=8Gi, cpu=1500m "))
    assert said == Followers(12, (("cpu", "1500m"), ("memory", "8Gi")))
    found = read_membership(driver("1 nvidia.com/gpu=1"))
    assert found is not None
    assert (found.name, found.minimum, found.maximum, found.of) == ("main", 1, None, "Pod")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "cpu=1",
        "0 cpu=1",
        "2 cpu",
        "2 cpu=1,cpu=2",
        "2 cpu=x",
        "2 cpu=-1",
        "1000001 cpu=1",
        "two cpu=1",
        "-1 cpu=1",
        "2 cpu=1;memory=2",
    ],
)
def test_an_annotation_that_cannot_be_read_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_followers(driver(text))
    assert caught.value.where == f"metadata.annotations[{KEY}]"
    assert caught.value.hint


def test_a_driver_names_no_group_and_is_a_pod() -> None:
    both = driver("2 cpu=1")
    both["metadata"]["labels"] = {"fluxqueue/pod-group": "mine", "fluxqueue/group-size": "2"}
    with pytest.raises(InvalidInput, match=r"fluxqueue/pod-group.*a driver is one by itself.*Fix"):
        read_membership(both)
    with pytest.raises(InvalidInput, match=r"fluxqueue/followers.*is for pods only.*Fix"):
        read_membership(batch_job(meta={"annotations": {KEY: "2 cpu=1"}}))


SIZE = f"cpu=4,memory={(1024 + 384) * MIB}"


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([], ""),
        (["--conf", "spark.executor.cores=4"], ""),
        (["--conf", "spark.executor.instances=x"], ""),
        (["--conf", "spark.executor.instances=2", "--conf", "spark.executor.memory=lots"], ""),
        (["--conf", "spark.executor.instances=3", "-c", "spark.executor.cores=4"], f"3 {SIZE}"),
        (["--conf=spark.executor.instances=3", "--executor-cores", "4"], f"3 {SIZE}"),
        (["--num-executors=3", "--executor-cores=4"], f"3 {SIZE}"),
        (
            [
                "--num-executors",
                "1",
                "--conf",
                "spark.kubernetes.executor.request.cores=500m",
                "--executor-memory",
                "8g",
            ],
            f"1 cpu=500m,memory={8192 * MIB + int(8192 * MIB * 0.1)}",
        ),
        (["--num-executors", "1", "/app/main.py"], f"1 cpu=1,memory={1024 * MIB + 429496729}"),
        (
            [
                "--num-executors",
                "1",
                "-c",
                "spark.executor.memoryOverhead=1g",
                "-c",
                "spark.executor.pyspark.memory=512",
            ],
            f"1 cpu=1,memory={(1024 + 1024 + 512) * MIB}",
        ),
        (
            [
                "-c",
                "spark.dynamicAllocation.enabled=true",
                "--executor-cores",
                "4",
                "-c",
                "spark.dynamicAllocation.minExecutors=5",
            ],
            f"5 {SIZE}",
        ),
    ],
)
def test_the_arguments_of_a_spark_driver_tell_its_executors(args: list[str], told: str) -> None:
    assert learn_followers(driver(None, *args)) == told


def test_arguments_of_other_pods_tell_nothing() -> None:
    pod = driver(None, "--num-executors", "3")
    pod["metadata"]["labels"] = {}
    assert learn_followers(pod) == ""
    assert read_membership(pod) is None


def test_an_executor_is_queued_with_a_driver_that_spark_itself_has_made() -> None:
    made_by = owner("Pod") | {"apiVersion": "v1"}
    meta: Obj = {"labels": {"spark-role": "executor"}, "ownerReferences": [made_by]}
    found = read_membership(bare_pod(meta=meta))
    assert is_follower(meta)
    assert found is not None
    assert (found.name, found.of) == ("owner", "Pod")
    by_operator = {"sparkoperator.k8s.io/launched-by-spark-operator": "true"}
    for other in (
        meta | {"labels": meta["labels"] | by_operator},
        meta | {"labels": {}},
        meta | {"ownerReferences": [owner("ReplicaSet")]},
        meta | {"ownerReferences": []},
    ):
        assert not is_follower(other)
        assert read_membership(bare_pod(meta=other)) is None


def test_the_service_account_of_a_driver_may_join_it() -> None:
    assert read_users(driver("1 cpu=1")) == {"system:serviceaccount:default:default"}
    more = driver("1 cpu=1", serviceAccountName="spark")
    more["metadata"]["annotations"]["fluxqueue/group-users"] = "bob"
    assert read_users(more) == {"bob", "system:serviceaccount:default:spark"}
    assert read_users(bare_pod(serviceAccountName="spark")) == frozenset()


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def on(key: str, field: str = "matchExpressions") -> Obj:
    """A required node affinity with one rule."""
    term = {field: [{"key": key, "operator": "In", "values": ["a"]}]}
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}


def test_a_pod_fits_that_needs_no_more_and_goes_to_the_same_nodes() -> None:
    said, spec = Followers(2, (("cpu", "2"), ("memory", "1Gi"))), {"nodeSelector": {"pool": "main"}}

    def fits(requests: Obj, **more: Any) -> bool:
        made = bare_pod(containers=[container(requests=requests)], **{**spec, **more})
        return said.fits(made, spec)

    assert fits({"cpu": "2", "memory": "1Gi"})
    assert fits({"cpu": "1"})
    assert not fits({"cpu": "2001m"})
    assert not fits({"cpu": "1", "example.com/gpu": "1"})
    assert not fits({"cpu": "1"}, nodeSelector={})
    assert not fits({"cpu": "1"}, affinity=on("zone"))
    assert not fits({"cpu": "1"}, tolerations=[{"key": "a", "operator": "Exists"}])
    # Its release has named its node.
    released = {"nodeSelector": {"pool": "main", "kubernetes.io/hostname": "node-1"}}
    assert fits({"cpu": "1"}, **released, affinity=on("metadata.name", "matchFields"))
    assert fits({"cpu": "1"}, affinity=on("kubernetes.io/hostname"))
    assert said.pod_spec(released)["nodeSelector"] == {"pool": "main"}
