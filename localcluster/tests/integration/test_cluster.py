"""The embedded cluster end to end: API server, controllers, scheduler and nodes, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from localcluster import (
    ControllerOptions,
    LocalCluster,
    LocalClusterConfig,
    NodeShape,
    SimulatedNodes,
)
from localcluster.client.access import StaticAccess
from localcluster.client.calls import Client, PatchKind
from localcluster.client.http import HttpTransport
from localcluster.client.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    Resource,
)
from localcluster.controllers.jobsets import JOBSETS
from localcluster.errors import NotFound
from localcluster.obj import Obj
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(400)

PREFIX = "localcluster/"


def _config(**options: Any) -> LocalClusterConfig:
    nodes = [NodeShape("node-1", cpu="4"), NodeShape("node-2", cpu="4", labels={"disk": "ssd"})]
    return LocalClusterConfig(nodes=nodes, options=ControllerOptions.quick(), **options)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """Two nodes of 4 cpu."""
    async with LocalCluster(_config()) as running:
        yield running


@asynccontextmanager
async def client_of(cluster: LocalCluster) -> AsyncIterator[Client]:
    """A client over HTTP and TLS, as any other."""
    access = StaticAccess(cluster.url, cluster.ca_pem.decode(), cluster.token)
    client = Client(HttpTransport(access), headers={"User-Agent": "test"})
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[Client]:
    """An administrator over HTTP and TLS."""
    async with client_of(cluster) as made:
        yield made


def _template(notes: dict[str, str], cpu: str = "1", **spec: Any) -> Obj:
    return {
        "metadata": {"annotations": {f"{PREFIX}{key}": value for key, value in notes.items()}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {"name": "main", "image": "app", "resources": {"requests": {"cpu": cpu}}}
            ],
            **spec,
        },
    }


def _job(name: str, template: Obj, **spec: Any) -> Obj:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": template, **spec},
    }


async def _get(client: Client, resource: Resource, name: str) -> Obj | None:
    try:
        namespace = "default" if resource.namespaced else None
        return await client.get(resource, namespace, name)
    except NotFound:
        return None


def _conditions(obj: Obj) -> dict[str, Obj]:
    return {c["type"]: c for c in (obj.get("status") or {}).get("conditions") or ()}


async def _job_with(client: Client, name: str, condition: str) -> Obj:
    async def look() -> Obj | None:
        job = await _get(client, JOBS, name)
        return job if job is not None and condition in _conditions(job) else None

    found = await eventually(look, f"job {name} with {condition}")
    assert found is not None
    return found


async def _pods(client: Client, selector: str = "") -> list[Obj]:
    query = urlencode({"labelSelector": selector})
    listed = await client.request("GET", f"{PODS.path('default')}?{query}")
    items: list[Obj] = listed["items"]
    return items


def _pods_are(
    client: Client, selector: str, test: Callable[[list[Obj]], bool]
) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return test(await _pods(client, selector))

    return look


async def test_job_runs_to_completion(client: Client) -> None:
    """Pods on both nodes, all counted, no finalizer left, the conditions in order."""
    template = _template({"duration": "0.2s"})
    await client.create(JOBS, "default", _job("run", template, parallelism=3, completions=5))
    job = await _job_with(client, "run", "Complete")
    assert [c["type"] for c in job["status"]["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert job["status"]["succeeded"] == 5
    assert job["status"]["uncountedTerminatedPods"] == {}
    pods = await _pods(client, "job-name=run")
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    assert all(not pod["metadata"].get("finalizers") for pod in pods)
    assert [pod["status"]["phase"] for pod in pods] == ["Succeeded"] * 5


async def test_indexed_job_survives_failures(client: Client) -> None:
    """Each index fails once, is replaced after the back-off and then succeeds."""
    template = _template({"duration": "0.1s", "fail-times": "1"})
    body = _job("ix", template, parallelism=2, completions=2, completionMode="Indexed")
    await client.create(JOBS, "default", body)
    job = await _job_with(client, "ix", "Complete")
    status = job["status"]
    assert (status["completedIndexes"], status["succeeded"], status["failed"]) == ("0,1", 2, 2)


async def test_failing_job(client: Client) -> None:
    """backoffLimit 0: one failure ends it, the pod that still ran is killed."""
    template = _template({"duration": "0.1s", "exit-code": "3"})
    await client.create(JOBS, "default", _job("bad", template, backoffLimit=0))
    job = await _job_with(client, "bad", "Failed")
    assert [c["type"] for c in job["status"]["conditions"]] == ["FailureTarget", "Failed"]
    (pod,) = await _pods(client, "job-name=bad")
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["exitCode"] == 3


async def test_restart_in_place(client: Client) -> None:
    """OnFailure: the same pod runs again and its restarts are counted."""
    template = _template({"duration": "0.1s", "fail-times": "2"}, restartPolicy="OnFailure")
    await client.create(JOBS, "default", _job("again", template))
    await _job_with(client, "again", "Complete")
    (pod,) = await _pods(client, "job-name=again")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 2


async def test_annotations_count_while_a_pod_runs(client: Client) -> None:
    """A pod that never ends is deleted, and what it had of its node is free again."""
    template = _template({"never-ends": "true"}, cpu="4")
    await client.create(JOBS, "default", _job("told", template, parallelism=2, completions=3))
    running = _pods_are(
        client, "job-name=told", lambda p: [x["status"]["phase"] for x in p] == ["Running"] * 2
    )
    await eventually(running, "both nodes busy")
    notes = {f"{PREFIX}never-ends": None, f"{PREFIX}duration": "0s"}
    for _ in range(2):
        for pod in await _pods(client, "job-name=told"):
            body = {"metadata": {"annotations": notes}}
            await client.patch(PODS, "default", pod["metadata"]["name"], body)
        third = _pods_are(
            client,
            "job-name=told",
            lambda p: len(p) == 3 and all(x["status"]["phase"] != "Pending" for x in p),
        )
        await eventually(third, "the third runs in the room of another")
    await _job_with(client, "told", "Complete")


async def test_suspend_and_resume(client: Client) -> None:
    """Suspending takes the pods away without failures. Resuming starts anew."""
    template = _template({"never-ends": "true"})
    await client.create(JOBS, "default", _job("s", template, suspend=True))
    job = await _job_with(client, "s", "Suspended")
    assert "startTime" not in job["status"]
    assert await _pods(client) == []
    await client.patch(JOBS, "default", "s", {"spec": {"suspend": False}})
    running = _pods_are(
        client, "job-name=s", lambda pods: [p["status"]["phase"] for p in pods] == ["Running"]
    )
    await eventually(running, "one pod runs")
    await client.patch(JOBS, "default", "s", {"spec": {"suspend": True}})
    await eventually(_pods_are(client, "job-name=s", lambda pods: not pods), "no pods")

    async def quiet() -> bool:
        job = await client.get(JOBS, "default", "s")
        return not job["status"].get("active") and job["status"]["terminating"] == 0

    await eventually(quiet, "nothing terminates")
    job = await client.get(JOBS, "default", "s")
    assert "failed" not in job["status"]


async def test_gates_and_selectors(client: Client) -> None:
    """A gated pod waits. Ungated with a host name it runs exactly there."""
    spec = _template({"duration": "0.1s"}, schedulingGates=[{"name": "example.com/q"}])["spec"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "g"}, "spec": spec}
    pod = await client.create(PODS, "default", body)
    assert _conditions(pod)["PodScheduled"]["reason"] == "SchedulingGated"
    selector = {"kubernetes.io/hostname": "node-2"}
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/spec/nodeSelector", "value": selector},
    ]
    await client.patch(PODS, "default", "g", patch, kind=PatchKind.JSON)
    done = _pods_are(client, "", lambda pods: pods[0]["status"]["phase"] == "Succeeded")
    await eventually(done, "the pod has run")
    (pod,) = await _pods(client)
    assert pod["spec"]["nodeName"] == "node-2"


async def test_full_cluster_and_its_explanation(client: Client) -> None:
    """What does not fit waits with the scheduler's words and starts when there is room."""
    first = _template({"never-ends": "true"}, cpu="3")
    await client.create(JOBS, "default", _job("big", first, parallelism=2, completions=2))
    running = _pods_are(
        client, "job-name=big", lambda p: [x["status"]["phase"] for x in p] == ["Running"] * 2
    )
    await eventually(running, "both nodes busy")
    await client.create(JOBS, "default", _job("late", _template({"duration": "0.1s"}, cpu="2")))

    async def explained() -> bool:
        pods = await _pods(client, "job-name=late")
        condition = _conditions(pods[0]).get("PodScheduled", {}) if pods else {}
        return str(condition.get("message", "")).startswith(
            "0/2 nodes are available: 2 Insufficient cpu."
        )

    await eventually(explained, "an explanation")
    await client.delete(JOBS, "default", "big", propagation="Background")
    await _job_with(client, "late", "Complete")


async def test_deletion_policies(client: Client) -> None:
    """Background and foreground take the pods along, the default leaves them."""
    template = _template({"never-ends": "true"}, cpu="100m")
    for name in ("background", "foreground", "default"):
        await client.create(JOBS, "default", _job(name, template))
        label = f"job-name={name}"
        await eventually(
            _pods_are(client, label, lambda p: bool(p) and p[0]["status"]["phase"] == "Running"),
            f"{name} runs",
        )
    await client.delete(JOBS, "default", "background", propagation="Background")
    await client.delete(JOBS, "default", "foreground", propagation="Foreground")
    await client.delete(JOBS, "default", "default")
    for name in ("background", "foreground"):
        await eventually(_pods_are(client, f"job-name={name}", lambda p: not p), f"{name} gone")

    async def is_gone() -> bool:
        return (
            await _get(client, JOBS, "foreground") is None
            and await _get(client, JOBS, "default") is None
        )

    await eventually(is_gone, "both Jobs gone")
    (orphan,) = await _pods(client, "job-name=default")
    assert not orphan["metadata"].get("ownerReferences")
    assert not orphan["metadata"].get("finalizers")


async def test_pods_without_a_job_lose_its_finalizer(client: Client) -> None:
    """An orphaning deletion may detach pods before their Job has counted them."""
    template = _template({"duration": "0.1s"}, "100m")
    finalizers = ["batch.kubernetes.io/job-tracking", "example.com/other"]
    meta = {**template["metadata"], "name": "left", "finalizers": finalizers}
    await client.create(PODS, "default", {**template, "metadata": meta})

    async def is_released() -> bool:
        pod = await client.get(PODS, "default", "left")
        return bool(pod["metadata"].get("finalizers") == ["example.com/other"])

    await eventually(is_released, "only the Job controller's finalizer goes")
    await client.patch(PODS, "default", "left", {"metadata": {"finalizers": None}})


async def test_ttl(client: Client) -> None:
    """A finished Job goes with its pods when its TTL is over."""
    body = _job("t", _template({"duration": "0.1s"}), ttlSecondsAfterFinished=1)
    await client.create(JOBS, "default", body)

    async def is_gone() -> bool:
        return await _get(client, JOBS, "t") is None and not await _pods(client)

    await eventually(is_gone, "Job and pods gone")


async def test_custom_resources_are_collected(client: Client) -> None:
    """An owner of a kind defined at runtime: its dependents follow it."""
    group = "example.org"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    crds = Resource(
        "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False
    )
    await client.create(crds, None, definition)
    widgets = Resource(group, "v1", "widgets", "Widget", True)

    async def is_served() -> bool:
        try:
            await client.list(widgets, "default")
        except NotFound:
            return False
        return True

    await eventually(is_served, "widgets served")
    body = {"apiVersion": f"{group}/v1", "kind": "Widget", "metadata": {"name": "w"}}
    widget = await client.create(widgets, "default", body)
    owner = {
        "apiVersion": f"{group}/v1",
        "kind": "Widget",
        "name": "w",
        "uid": widget["metadata"]["uid"],
    }
    dependent = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "of-w", "ownerReferences": [owner]},
    }
    await client.create(CONFIGMAPS, "default", dependent)
    await client.delete(widgets, "default", "w")

    async def is_collected() -> bool:
        return await _get(client, CONFIGMAPS, "of-w") is None

    await eventually(is_collected, "the dependent is collected")


async def test_namespace_is_emptied(client: Client) -> None:
    """It is filled when made and goes with everything in it."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
    await client.create(NAMESPACES, None, body)

    async def is_filled() -> bool:
        return bool((await client.list(CONFIGMAPS, "team")).items)

    await eventually(is_filled, "the CA bundle")
    job = _job("j", _template({"never-ends": "true"}))
    job["metadata"]["namespace"] = "team"
    await client.create(JOBS, "team", job)
    await client.delete(NAMESPACES, None, "team")

    async def is_gone() -> bool:
        return await _get(client, NAMESPACES, "team") is None

    await eventually(is_gone, "the namespace is gone")
    assert (await client.list(PODS)).items == []


async def test_silent_node_and_its_return(cluster: LocalCluster, client: Client) -> None:
    """Ready becomes Unknown with taints. Pods are marked. Afterwards all is as before."""
    template = _template({"never-ends": "true"}, nodeSelector={"disk": "ssd"})
    await client.create(JOBS, "default", _job("j", template))
    await eventually(
        _pods_are(client, "", lambda p: bool(p) and p[0]["status"]["phase"] == "Running"), "runs"
    )
    assert cluster.nodes is not None
    cluster.nodes.silence("node-2")

    async def is_unknown() -> bool:
        node = await client.get(NODES, None, "node-2")
        keys = {t["key"] for t in node["spec"].get("taints") or ()}
        ready = _conditions(node)["Ready"]["status"]
        return ready == "Unknown" and "node.kubernetes.io/unreachable" in keys

    await eventually(is_unknown, "node-2 unreachable")
    await eventually(
        _pods_are(client, "", lambda p: _conditions(p[0])["Ready"]["status"] == "False"),
        "its pod is not ready",
    )
    await cluster.nodes.revive("node-2")

    async def is_back() -> bool:
        node = await client.get(NODES, None, "node-2")
        return _conditions(node)["Ready"]["status"] == "True" and not node["spec"].get("taints")

    await eventually(is_back, "node-2 ready without taints")


async def test_vanished_node_loses_its_pods(cluster: LocalCluster, client: Client) -> None:
    """Pods of a deleted node fail as disrupted. Their Job replaces them elsewhere."""
    template = _template({"never-ends": "true"})
    await client.create(JOBS, "default", _job("j", template))
    running = _pods_are(client, "", lambda p: bool(p) and p[0]["status"]["phase"] == "Running")
    await eventually(running, "runs")
    (pod,) = await _pods(client)
    lost = pod["spec"]["nodeName"]
    assert cluster.nodes is not None
    await cluster.nodes.remove(lost)

    async def is_replaced() -> bool:
        pods = await _pods(client)
        return [p["spec"].get("nodeName") for p in pods] == [
            "node-1" if lost == "node-2" else "node-2"
        ]

    await eventually(is_replaced, "a replacement on the other node")

    async def is_counted() -> bool:
        return (await client.get(JOBS, "default", "j"))["status"].get("failed") == 1

    await eventually(is_counted, "the lost pod counted as failed")


async def test_a_node_refuses_what_does_not_fit(client: Client) -> None:
    """A pod bound past the scheduler fails with the kubelet's reason."""
    spec = _template({}, cpu="5", nodeName="node-1")["spec"]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}
    await client.create(PODS, "default", body)
    failed = _pods_are(client, "", lambda pods: pods[0]["status"]["phase"] == "Failed")
    await eventually(failed, "refused")
    (pod,) = await _pods(client)
    assert pod["status"]["reason"] == "OutOfcpu"


async def test_deployment_and_statefulset(client: Client) -> None:
    """Rolled out, updated, scaled and removed with everything below."""
    selector = {"matchLabels": {"app": "w"}}
    template = _template({}, cpu="100m", restartPolicy="Always")
    template["metadata"]["labels"] = {"app": "w"}
    spec = {"replicas": 2, "selector": selector, "template": template}
    metadata = {"name": "w", "namespace": "default"}
    web = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    await client.create(DEPLOYMENTS, "default", web)

    def rolled(replicas: int, generation: int) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            status = (await client.get(DEPLOYMENTS, "default", "w")).get("status") or {}
            names = ("replicas", "updatedReplicas", "availableReplicas")
            is_seen = status.get("observedGeneration", 0) >= generation
            return is_seen and all(status.get(name) == replicas for name in names)

        return look

    await eventually(rolled(2, 1), "two available")
    change = {"spec": {"replicas": 3, "template": {"metadata": {"labels": {"v": "2"}}}}}
    changed = await client.patch(DEPLOYMENTS, "default", "w", change)
    await eventually(rolled(3, changed["metadata"]["generation"]), "three of the new template")
    assert len((await client.list(REPLICASETS, "default")).items) == 2
    await client.delete(DEPLOYMENTS, "default", "w")
    await eventually(_pods_are(client, "app=w", lambda pods: not pods), "all gone")

    db_template = {**template, "metadata": {**template["metadata"], "labels": {"app": "db"}}}
    db = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": db_template,
        },
    }
    await client.create(STATEFULSETS, "default", db)

    async def is_up() -> bool:
        status = (await client.get(STATEFULSETS, "default", "db")).get("status") or {}
        return status.get("readyReplicas") == 2

    await eventually(is_up, "both members ready")
    names = sorted(pod["metadata"]["name"] for pod in await _pods(client, "app=db"))
    assert names == ["db-0", "db-1"]


async def test_a_second_start_goes_on(tmp_path: Path) -> None:
    """With a data directory running pods go on and the Job completes after the restart."""
    config = _config(data_dir=tmp_path)
    async with (
        LocalCluster(config) as cluster,
        client_of(cluster) as client,
    ):
        template = _template({"duration": "6s"})  # both must be seen running
        await client.create(JOBS, "default", _job("j", template, parallelism=2, completions=2))
        await eventually(
            _pods_are(
                client,
                "",
                lambda p: [x["status"]["phase"] for x in p] == ["Running"] * 2,
            ),
            "both run",
        )
        uids = {pod["metadata"]["uid"] for pod in await _pods(client)}
    async with (
        LocalCluster(config) as cluster,
        client_of(cluster) as client,
    ):
        job = await _job_with(client, "j", "Complete")
        assert job["status"]["succeeded"] == 2
        assert {pod["metadata"]["uid"] for pod in await _pods(client)} == uids


async def test_stop_is_clean() -> None:
    """No task of the cluster survives it."""
    before = set(asyncio.all_tasks())
    async with LocalCluster(_config()):
        assert len(asyncio.all_tasks()) > len(before)
    left = {task for task in asyncio.all_tasks() - before if not task.done()}
    assert not left


async def test_a_jobset_runs_its_jobs() -> None:
    """On request: suspended Jobs while it is suspended, then all run, and it is completed."""
    container = {"name": "main", "image": "i", "command": ["sleep", "0.1"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec = {"parallelism": 2, "completions": 2, "template": template}
    part = {"name": "workers", "replicas": 2, "template": {"spec": spec}}
    body = {
        "apiVersion": JOBSETS.api_version,
        "kind": JOBSETS.kind,
        "metadata": {"name": "train"},
        "spec": {"suspend": True, "replicatedJobs": [part]},
    }
    async with LocalCluster(_config(has_jobsets=True)) as cluster, client_of(cluster) as client:
        await client.create(JOBSETS, "default", body)

        async def suspended() -> bool:
            jobs = (await client.list(JOBS, "default")).items
            return len(jobs) == 2 and all(one["spec"]["suspend"] for one in jobs)

        await eventually(suspended, "two suspended Jobs")
        assert not (await client.list(PODS, "default")).items
        await client.patch(JOBSETS, "default", "train", {"spec": {"suspend": False}})

        async def completed() -> bool:
            found = await client.get(JOBSETS, "default", "train")
            return bool((found.get("status") or {}).get("terminalState") == "Completed")

        await eventually(completed, "the JobSet is completed")
        names = {one["metadata"]["name"] for one in (await client.list(JOBS, "default")).items}
        assert names == {"train-workers-0", "train-workers-1"}


async def test_pods_of_a_removed_node_take_nothing_from_the_next_node_of_its_name(
    cluster: LocalCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The pod is deleted when the other node is there. That one has room for all that fits it."""
    access = StaticAccess(cluster.url, cluster.ca_pem.decode(), cluster.token)
    guest = NodeShape("guest", cpu="4", labels={"role": "guest"})
    template = _template({"never-ends": "true"}, cpu="3", nodeSelector={"role": "guest"})
    async with SimulatedNodes(access, [guest], ControllerOptions.quick()) as nodes:
        await client.create(JOBS, "default", _job("stays", template))

        async def running() -> set[str]:
            pods = (await client.list(PODS, "default")).items
            return {
                one["metadata"]["name"] for one in pods if one["status"].get("phase") == "Running"
            }

        before = await eventually(running, "its pod runs")
        assert before is not None
        await nodes.fleet.remove("guest")
        await nodes.add(guest)
        (first,) = before
        await client.delete(PODS, "default", first)

        async def runs_again() -> bool:
            now = await running()
            return len(now) == 1 and not now & before

        await eventually(runs_again, "another pod runs in its place")
    assert [one.message for one in caplog.records if "controller failed" in one.message] == []


async def _ended(client: Client, name: str) -> Obj:
    async def look() -> Obj | None:
        pod = await _get(client, PODS, name)
        return pod if pod and pod["status"].get("phase") in {"Succeeded", "Failed"} else None

    found = await eventually(look, f"pod {name} has ended")
    assert found is not None
    return found


PROGRAM = """
echo $NAME $(cat $FOLDER/x 2>/dev/null) '$$'; echo one > /work/x; cat /work/x
echo done > /dev/termination-log; exit 3
"""


async def test_programs_run_on_this_machine_if_that_is_asked_for() -> None:
    """With variables, empty volumes, output, message and exit code. Others stay simulated."""
    async with LocalCluster(_config(runs_programs=True)) as running, client_of(running) as client:
        spec = _template({})["spec"]
        main = {**spec["containers"][0], "volumeMounts": [{"name": "w", "mountPath": "/work"}]}
        field = {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}
        main["env"] = [{"name": "NAME", "valueFrom": field}, {"name": "FOLDER", "value": "/work"}]
        commands = {
            "whole": ["sh", "-c", PROGRAM.replace("$", "$$")],
            "missing": ["no-such-program"],
            "stubborn": ["sh", "-c", "trap 'echo asked' TERM; while :; do sleep 0.1; done"],
            "simulated": [],
        }
        for name, command in commands.items():
            one = {**spec, "containers": [{**main, "command": command}]}
            pod = {"metadata": {"name": name, "labels": {"a/b": "c"}}, "spec": one}
            pod["spec"]["volumes"] = [{"name": "w", "emptyDir": {}}]
            await client.create(PODS, "default", {"apiVersion": "v1", "kind": "Pod", **pod})
        whole = await _ended(client, "whole")
        ended = whole["status"]["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["message"]) == (3, "done\n")
        logs = whole["metadata"]["annotations"][f"{PREFIX}logs"]
        assert logs == "c $$\none\n"
        missing = await _ended(client, "missing")
        ended = missing["status"]["containerStatuses"][0]["state"]["terminated"]
        assert ended["exitCode"] == 127
        assert (await _ended(client, "simulated"))["status"]["phase"] == "Succeeded"
        await client.delete(PODS, "default", "stubborn", grace_s=1)

        async def is_gone() -> bool:
            return await _get(client, PODS, "stubborn") is None

        await eventually(is_gone, "its program is killed after the grace period")
