"""Helm itself installs and upgrades a chart with an ordinary Job, which waits its turn.

Helm's own library is one of the packages for tests. It is that of Helm 4, which applies on the
server, and on request sends three-way merges as Helm 3 does. A program that ``FLUXQUEUE_TEST_HELM``
names, or else ``helm`` on the PATH, is tried as well.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import helm_python
import pytest
import yaml

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import CONFIGMAPS, FLUXJOBS, JOBS
from tests.support.e2e.gitops import TOOL, close, tool_account
from tests.support.e2e.objects import FOR_EVER, QUICK, Obj, job
from tests.support.e2e.space import WAITING, Space

RELEASE = "nightly"
PROGRAM = os.environ.get("FLUXQUEUE_TEST_HELM") or shutil.which("helm")
TIMEOUT_S = 120


class ReleaseTool(Protocol):
    """The verbs of Helm that change a release. Each raises if Helm fails."""

    async def install(self, chart: Path, revision: int) -> None:
        """Install the chart."""

    async def upgrade(self, chart: Path, revision: int) -> None:
        """Upgrade to the chart with a new value."""

    async def rollback(self, revision: int) -> None:
        """Return to an earlier revision of the release."""

    async def uninstall(self) -> None:
        """Remove the release."""


class HelmLibrary:
    """Helm by its library. An upgrade applies as the installation did."""

    def __init__(self, kubeconfig: Path, namespace: str, *, is_on_server: bool) -> None:
        self._helm = helm_python.Config(
            kubeconfig_path=kubeconfig, namespace=namespace, kube_as_user=TOOL
        )
        self._is_on_server = is_on_server

    async def install(self, chart: Path, revision: int) -> None:
        """Install the chart."""
        method = {"server_side_apply": self._is_on_server}
        await self._run(method, self._helm.install, chart, RELEASE, {"revision": revision})

    async def upgrade(self, chart: Path, revision: int) -> None:
        """Upgrade to the chart with a new value."""
        await self._run(self._force, self._helm.upgrade, chart, RELEASE, {"revision": revision})

    async def rollback(self, revision: int) -> None:
        """Return to an earlier revision of the release."""
        await self._run(self._force, self._helm.rollback, RELEASE, version=revision)

    async def uninstall(self) -> None:
        """Remove the release."""
        await asyncio.to_thread(self._helm.uninstall, RELEASE, timeout=TIMEOUT_S)

    @property
    def _force(self) -> Obj:
        return {"force_conflicts": True} if self._is_on_server else {}

    async def _run(self, more: Obj, action: Any, *arguments: Any, **options: Any) -> None:
        """Call Helm with options that its Python interface lacks."""
        usual = helm_python.config._opts

        def told(**pairs: Any) -> str | None:
            return usual(**pairs, **more)

        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(helm_python.config, "_opts", told)
            await asyncio.to_thread(action, *arguments, timeout=TIMEOUT_S, **options)


class HelmProgram:
    """Helm by its program, of any version from 3 on."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        where = ("--kubeconfig", str(kubeconfig), "--namespace", namespace)
        self._options = (*where, "--kube-as-user", TOOL, "--timeout", f"{TIMEOUT_S}s")
        self._force: tuple[str, ...] = ()

    async def install(self, chart: Path, revision: int) -> None:
        """Install the chart."""
        version = await self._run("version", "--template", "{{.Version}}")
        # Helm 4 applies on the server. Helm 3 sends merges, and does not know the option.
        self._force = () if version.startswith("v3.") else ("--force-conflicts",)
        await self._run("install", RELEASE, str(chart), "--set", f"revision={revision}")

    async def upgrade(self, chart: Path, revision: int) -> None:
        """Upgrade to the chart with a new value."""
        words = ("upgrade", RELEASE, str(chart), "--set", f"revision={revision}")
        await self._run(*words, *self._force)

    async def rollback(self, revision: int) -> None:
        """Return to an earlier revision of the release."""
        await self._run("rollback", RELEASE, str(revision), *self._force)

    async def uninstall(self) -> None:
        """Remove the release."""
        await self._run("uninstall", RELEASE)

    async def _run(self, *words: str) -> str:
        assert PROGRAM is not None
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            *words,
            *(() if words[0] == "version" else self._options),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        return printed.decode()


NO_PROGRAM = pytest.mark.skipif(
    PROGRAM is None, reason="no helm: FLUXQUEUE_TEST_HELM names none, and none is on the PATH"
)


@pytest.fixture(params=["server-side", "three-way", pytest.param("program", marks=NO_PROGRAM)])
def helm(request: pytest.FixtureRequest, space: Space) -> ReleaseTool:
    """Helm, as a user with the role ``admin`` in the namespace of the test."""
    where = (space.world.kubeconfig, space.name)
    if request.param == "program":
        return HelmProgram(*where)
    return HelmLibrary(*where, is_on_server=request.param == "server-side")


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """A chart with a Job that says ``suspend: false``, its settings, and a hook."""
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    about = {"apiVersion": "v2", "name": "nightly", "version": "1.0.0"}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    hook = job("migrate", cpu="100m", pool="main", run=QUICK)
    hook["metadata"] |= {"labels": {"fluxqueue/managed": "false"}}
    hook["metadata"]["annotations"] = {
        "helm.sh/hook": "pre-upgrade",
        "helm.sh/hook-delete-policy": "before-hook-creation",
    }
    documents = {
        "job": job("synced", cpu="15", pool="single", run=FOR_EVER, suspend=False),
        "hook": hook,
        "settings": {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings"},
            "data": {"revision": "REVISION"},
        },
    }
    for name, document in documents.items():
        text = yaml.safe_dump(document).replace("REVISION", "{{ .Values.revision | quote }}")
        (folder / "templates" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.long("Helm looks at its hooks every second or so")
async def test_a_release_is_upgraded_while_its_job_waits_and_runs(
    space: Space, helm: ReleaseTool, chart: Path
) -> None:
    """Before the first start, while the Job runs, and when it waits again."""
    await tool_account(space)
    await space.create(job("blocker", cpu="15", pool="single", run=FOR_EVER))
    await space.until_state("blocker", "Running")
    await helm.install(chart, 1)
    await _upgrade(space, helm, chart, 2, is_suspended=True)
    await helm.rollback(1)
    stored = await _upgrade(space, helm, chart, 3, is_suspended=True)
    assert stored["metadata"]["generation"] == 1, "it was resumed in between"
    await space.until_state("synced", *WAITING)
    await space.delete("blocker")
    await space.until_state("synced", "Running")
    for revision in (4, 5):
        await _upgrade(space, helm, chart, revision, is_suspended=False)
    await close(space, "single")
    try:
        again = {"spec": {"requeue": "again"}}
        await space.client.patch(FLUXJOBS, space.name, "synced-job", again, kind=PatchKind.MERGE)
        await space.until_state("synced", *WAITING)
        await _upgrade(space, helm, chart, 6, is_suspended=True)
    finally:
        await close(space, "single", is_closed=None)
    await space.until_state("synced", "Running")
    await helm.uninstall()
    await space.until_gone(JOBS, "synced")
    with pytest.raises(NotFound):
        await space.client.get(CONFIGMAPS, space.name, "settings")


async def _upgrade(
    space: Space, helm: ReleaseTool, chart: Path, revision: int, *, is_suspended: bool
) -> Obj:
    """Upgrade, and return the Job, which is the same and as suspended as before."""
    before = await space.client.get(JOBS, space.name, "synced")
    await helm.upgrade(chart, revision)
    settings = await space.client.get(CONFIGMAPS, space.name, "settings")
    assert settings["data"] == {"revision": str(revision)}
    stored = await space.client.get(JOBS, space.name, "synced")
    assert stored["metadata"]["uid"] == before["metadata"]["uid"]
    assert stored["spec"]["suspend"] is is_suspended
    return stored
