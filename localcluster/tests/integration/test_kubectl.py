"""kubectl against the embedded API server: what users type."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localcluster.server.server import ApiServer
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: sleep, labels: {app: demo}}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: busybox, command: [sleep, "5"]}]
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: nginx}]}
"""
DEFINITION = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing, shortNames: [th]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec: {type: object, properties: {size: {type: integer, description: How many}}}
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""


@dataclass
class Kubectl:
    """Runs kubectl with the server's kubeconfig and a cache of its own."""

    kubeconfig: Path
    folder: Path

    async def start(self, *words: str, stdin: str = "") -> asyncio.subprocess.Process:
        """Start a command. Its output can be read while it runs."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.folder)}
        process = await asyncio.create_subprocess_exec(
            "kubectl",
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
        return process

    async def run(self, *words: str, stdin: str = "") -> tuple[int, str, str]:
        """Exit code, output, errors."""
        process = await self.start(*words, stdin=stdin)
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return await process.wait(), out.decode(), err.decode()

    async def __call__(self, *words: str, stdin: str = "") -> str:
        """The output of a command that must succeed."""
        code, out, err = await self.run(*words, stdin=stdin)
        assert code == 0, f"kubectl {' '.join(words)}: {out}{err}"
        return out


@pytest.fixture
def kubectl(server: ApiServer, tmp_path: Path) -> Kubectl:
    """kubectl for the server of the test."""
    config = tmp_path / "kubeconfig"
    server.write_kubeconfig(config)
    return Kubectl(config, tmp_path)


async def test_the_life_of_an_object(kubectl: Kubectl) -> None:
    """create, get in all forms, label, annotate, patch, apply, describe, wait, delete."""
    assert await kubectl("create", "-f", "-", stdin=JOB) == "job.batch/sleep created\n"
    wide = await kubectl("get", "jobs", "-o", "wide")
    assert wide.splitlines()[0].split()[:4] == ["NAME", "STATUS", "COMPLETIONS", "DURATION"]
    assert "name: sleep" in await kubectl("get", "job", "sleep", "-o", "yaml")
    path = "jsonpath={.spec.template.spec.containers[0].command[1]}"
    assert await kubectl("get", "job/sleep", "-o", path) == "5"
    await kubectl("label", "job", "sleep", "a=b")
    await kubectl("annotate", "job", "sleep", "note=x")
    assert "sleep" in await kubectl("get", "jobs", "-l", "a=b,app=demo", "-o", "name")
    for kind, patch in (
        ("merge", '{"metadata":{"labels":{"a":"c"}}}'),
        ("json", '[{"op":"replace","path":"/metadata/labels/a","value":"d"}]'),
        ("strategic", '{"spec":{"parallelism":2}}'),
    ):
        await kubectl("patch", "job", "sleep", "--type", kind, "-p", patch)
    got = json.loads(await kubectl("get", "job", "sleep", "-o", "json"))
    assert (got["metadata"]["labels"]["a"], got["spec"]["parallelism"]) == ("d", 2)
    assert "Parallelism:" in await kubectl("describe", "job", "sleep")
    await kubectl("wait", "--for=jsonpath={.spec.suspend}=true", "job/sleep", "--timeout=60s")
    await kubectl("delete", "job", "sleep", "--cascade=background")
    code, _, err = await kubectl.run("get", "job", "sleep")
    assert (code, err) == (1, 'Error from server (NotFound): jobs.batch "sleep" not found\n')


async def test_apply_and_scale(kubectl: Kubectl) -> None:
    """Client-side apply thrice, with validation. Then scale and roll out."""
    assert await kubectl("apply", "-f", "-", stdin=DEPLOYMENT) == "deployment.apps/web created\n"
    assert "unchanged" in await kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    changed = DEPLOYMENT.replace("nginx", "nginx:2")
    assert "configured" in await kubectl("apply", "-f", "-", stdin=changed)
    await kubectl("scale", "deployment", "web", "--replicas=4")
    got = json.loads(await kubectl("get", "deploy", "web", "-o", "json"))
    assert got["spec"]["replicas"] == 4
    assert got["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    await kubectl("set", "image", "deployment/web", "main=nginx:3")
    await kubectl("rollout", "restart", "deployment/web")


async def test_a_wrong_manifest_is_refused(kubectl: Kubectl) -> None:
    """Server-side validation: an unknown field is an error, not lost."""
    wrong = JOB.replace("suspend: true", "suspendd: true")
    code, _, err = await kubectl.run("apply", "-f", "-", stdin=wrong)
    assert code == 1
    assert 'unknown field "spec.suspendd"' in err


async def test_server_side_apply(kubectl: Kubectl) -> None:
    """Conflicts are shown, force takes over, managers are listed."""
    await kubectl("apply", "--server-side", "-f", "-", stdin=DEPLOYMENT)
    await kubectl("set", "image", "deployment/web", "main=nginx:9")
    code, _, err = await kubectl.run("apply", "--server-side", "-f", "-", stdin=DEPLOYMENT)
    assert code == 1
    assert 'conflict with "kubectl-set" using apps/v1' in err
    await kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=DEPLOYMENT)
    shown = json.loads(await kubectl("get", "deploy", "web", "-o", "json", "--show-managed-fields"))
    managers = {e["manager"]: e["operation"] for e in shown["metadata"]["managedFields"]}
    assert managers["kubectl"] == "Apply"
    assert "unchanged" not in await kubectl("diff", "-f", "-", stdin=DEPLOYMENT)


async def test_get_watch_follows(kubectl: Kubectl) -> None:
    """``get -w`` prints a line per change."""
    await kubectl("create", "configmap", "a", "--from-literal=x=1")
    process = await kubectl.start("get", "configmaps", "-w", "--output-watch-events")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            assert b"EVENT" in await process.stdout.readline()
            assert b"ADDED" in await process.stdout.readline()
            await kubectl("label", "configmap", "a", "x=y")
            assert b"MODIFIED" in await process.stdout.readline()
            await kubectl("delete", "configmap", "a")
            assert b"DELETED" in await process.stdout.readline()
    finally:
        process.terminate()
        await process.wait()


@pytest.mark.parametrize(
    "words",
    [
        ("create", "namespace", "n"),
        ("create", "job", "j", "--image=i", "--", "sleep", "1"),
        ("create", "deployment", "d", "--image=i", "--replicas=2", "--port=80"),
        ("create", "secret", "generic", "s", "--from-literal=a=b"),
        ("create", "serviceaccount", "sa"),
        ("create", "role", "r", "--verb=get", "--resource=pods"),
        ("create", "priorityclass", "p", "--value=10"),
        ("create", "token", "default-token-user"),
        ("run", "p", "--image=i"),
        ("auth", "can-i", "create", "pods"),
        ("auth", "whoami"),
        ("api-resources",),
        ("api-versions",),
        ("version",),
        ("get", "all"),
        ("get", "events"),
        ("cluster-info",),
    ],
    ids=" ".join,
)
async def test_commands_with_bodies_of_their_own(kubectl: Kubectl, words: tuple[str, ...]) -> None:
    """Typed commands write protobuf. Discovery is read by all of them."""
    if "token" in words:
        await kubectl("create", "serviceaccount", words[-1])
    await kubectl(*words)


async def test_custom_resources(kubectl: Kubectl) -> None:
    """Define, wait, create, print with columns, explain, delete."""
    await kubectl("apply", "-f", "-", stdin=DEFINITION)
    await kubectl("wait", "--for=condition=Established", "crd/things.example.com", "--timeout=60s")
    thing: dict[str, Any] = {"apiVersion": "example.com/v1", "kind": "Thing"}
    thing |= {"metadata": {"name": "a"}, "spec": {"size": 7}}
    await kubectl("apply", "-f", "-", stdin=json.dumps(thing))
    lines = (await kubectl("get", "th")).splitlines()
    assert [line.split() for line in lines] == [["NAME", "SIZE"], ["a", "7"]]
    assert "How many" in await kubectl("explain", "thing.spec.size")
    await kubectl("delete", "crd", "things.example.com")
    assert (await kubectl.run("get", "things"))[0] == 1


async def test_explain(kubectl: Kubectl) -> None:
    """Field documentation comes from the server's OpenAPI."""
    shown = await kubectl("explain", "job.spec.suspend")
    assert "FIELD: suspend <boolean>" in shown
