"""``fluxqueue submit --attach``: the logs of a Job's pods as they are written, and its fate."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fluxqueue.kube.resources import FLUXJOBS, JOBS, ROLE_BINDINGS
from tests.support.chart_rights import CLUSTER_ROLES
from tests.support.e2e.space import Space
from tests.support.waiting import WAIT_S

HELD = "fluxqueue/hold"


@asynccontextmanager
async def _submitting(space: Space, *words: str) -> AsyncIterator[Process]:
    if space.world.kind == "real":
        pytest.skip("a control plane without kubelets has no logs")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fluxqueue", "submit", "--image", "a", "--name", "hello"),
        *("--attach", "-n", space.name, "--kubeconfig", str(space.world.kubeconfig)),
        *(*words, "--", "true"),
        stdout=PIPE,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _lines(process: Process, count: int) -> list[str]:
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        return [(await process.stdout.readline()).decode() for _ in range(count)]


async def _rest(process: Process) -> tuple[str, str, int]:
    async with asyncio.timeout(WAIT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return out.decode(), err.decode(), process.returncode


async def test_logs_are_followed_while_pods_run(space: Space) -> None:
    """Line by line, told apart by index. A Job that is cancelled ends with exit code 4."""
    async with _submitting(space, "--tasks", "2", "--hold") as process:
        assert await _lines(process, 1) == ["hello: submitted\n"]
        notes = {"localcluster/never-ends": "true", "localcluster/logs": "begins\ngrößer"}
        template = {"template": {"metadata": {"annotations": notes}}}
        await space.client.patch(JOBS, space.name, "hello", {"spec": template})
        unheld = {"metadata": {"annotations": {HELD: None}}}
        await space.client.patch(JOBS, space.name, "hello", unheld)
        written = ["0: begins\n", "0: größer\n", "1: begins\n", "1: größer\n"]
        assert sorted(await _lines(process, 4)) == written, "while the pods run on"
        await space.client.delete(FLUXJOBS, space.name, "hello-job")
        out, err, code = await _rest(process)
    assert (out, code) == ("", 4)
    assert err.splitlines()[-1].startswith(("hello-job Cancelled", "hello-job Gone"))


async def test_the_exit_code_is_the_jobs_fate(space: Space) -> None:
    """The log is whole when it is shown."""
    async with _submitting(space) as process:
        out, err, code = await _rest(process)
    submitted, begun, ended = out.splitlines()
    assert submitted == "hello: submitted"
    assert begun.startswith("simulated container main started on ")
    assert ended == "simulated container main exited with 0"
    assert "hello-job Completed" in err
    assert code == 0


SUBMITS = (
    ("batch", "jobs", ["create", "get"]),
    ("", "pods", ["list"]),
    (FLUXJOBS.group, "fluxjobs", ["get", "list", "watch"]),
)
"""What --attach needs but for ``get pods/log``."""


async def test_logs_that_may_not_be_read_are_said_so(space: Space) -> None:
    """The Job's fate is shown all the same."""
    role = f"{space.name}-submits"
    rules = [
        {"apiGroups": [group], "resources": [plural], "verbs": verbs}
        for group, plural, verbs in SUBMITS
    ]
    await space.client.create(CLUSTER_ROLES, None, {"metadata": {"name": role}, "rules": rules})
    binding = {
        "metadata": {"name": role},
        "subjects": [{"kind": "User", "name": "bob", "apiGroup": CLUSTER_ROLES.group}],
        "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": role},
    }
    await space.client.create(ROLE_BINDINGS, space.name, binding)
    async with _submitting(space, "--as", "bob") as process:
        out, err, code = await _rest(process)
    await space.client.delete(CLUSTER_ROLES, None, role)
    assert (out, code) == ("hello: submitted\n", 0), err
    assert "no logs: 403 Forbidden: " in err
    assert 'User "bob" cannot get resource "pods/log"' in err
    assert "hello-job Completed" in err
