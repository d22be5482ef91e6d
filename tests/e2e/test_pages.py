"""The commands of the documentation print what its pages show, on the cluster of these tests.

Every command of every ``console`` block is run, but for those of ``CANNOT_RUN``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from fluxqueue.kube.resources import NODES, PODS
from fluxqueue_devtools.localpg.binaries import find_binaries
from tests.e2e.space import Space
from tests.e2e.test_groups import define
from tests.e2e.test_owners import JOB_SET
from tests.support.console import BLOCK, Command, Console, commands
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FIRST = ("user/run", "user/waiting", "developer/extending")
"""Pages that run in every run; the others are played in ``make test-long``."""

CANNOT_RUN = {
    r"make ": "what it calls is run by the tests of it: test_demo, test_up, all of `make test`",
    r"docker |kubectl --kubeconfig kubeconfig": "needs Docker; test_compose_processes runs all",
    r"for lock in requirements": "downloads all packages; images/assemble has a test of its own",
    r"helm (?!template)|.*&& helm ": "needs pods that run images; tests/chart renders all",
    r"kubectl (create namespace fluxqueue-system|apply --server-side -f dist)": (
        "installs a release: tests/chart/test_manifest applies it"
    ),
    r"kubectl -n (fluxqueue-system|NS) |export PGPASSWORD": "about a release's pods, as above",
    r"export DATABASE_URL|fluxqueue db list$": "behind a port forwarded from such a pod",
    r"fluxqueue uninstall": "would stop the queue of all tests of this process: test_uninstall",
    r"fluxqueue top": "wants a terminal: test_top drives it in one",
    r"fluxqueue --install-completion": "writes into the user's shell: test_completion",
}
"""Beginning of a command -> why it is not run here."""

WITHOUT_KUBELETS = re.compile(r".*--attach|kubectl logs|.*\b(again|greet)\b|fluxqueue acct --since")
"""A real control plane without kubelets has no logs. So these Jobs are not submitted there, and no
job has ended when the page sums up the past day."""

NEEDS_VIEW = ("user/cli", "reference/view")
NEEDS_JOBSETS = ("user/groups",)
OF_ITS_OWN = ("user/try", "user/tutorial")
"""Pages that need ``make up`` itself: ``test_walks`` plays them."""


def _why_not(command: str) -> str:
    return next((why for form, why in CANNOT_RUN.items() if re.match(form, command)), "")


def _commands(page: Path) -> list[Command]:
    text = page.read_text(encoding="utf-8")
    return [one for block in BLOCK.findall(text) for one in commands(block)]


def _pages() -> list[str]:
    """Pages with a command that can be run."""
    return [
        str(page.relative_to(DOCS).with_suffix(""))
        for page in sorted(DOCS.rglob("*.md"))
        if any(not _why_not(one.text) for one in _commands(page))
    ]


LATER = [page for page in _pages() if page not in (*FIRST, *OF_ITS_OWN)]


def test_no_command_stands_where_nobody_runs_it() -> None:
    """Prompts stand in ``console`` blocks; what cannot be run is there, and is named once."""
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS.rglob("*.md"))]
    for text in texts:
        assert not re.findall(r"^ *\$ .*", BLOCK.sub("", text), re.MULTILINE)
    there = [one.text for page in DOCS.rglob("*.md") for one in _commands(page)]
    assert not [form for form in CANNOT_RUN if not any(re.match(form, one) for one in there)]
    readme = _commands(ROOT / "README.md")
    assert readme
    assert all(_why_not(one.text) for one in readme), "no test plays it"


def _shell(folder: Path, kubeconfig: Path, database_url: str) -> dict[str, str]:
    """A shell in ``folder``, where documents and chart are, with our programs on the path."""
    programs = folder / "bin"
    programs.mkdir()
    helm = programs / "helm"
    helm.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/support/helm_program.py "$@"\n')
    helm.chmod(0o755)
    for name in ("docs", "chart"):
        (folder / name).symlink_to(ROOT / name)
    path = (programs, Path(sys.executable).parent, find_binaries().folder, os.environ["PATH"])
    return {
        "PATH": ":".join(map(str, path)),
        "HOME": str(folder),
        "KUBECONFIG": str(kubeconfig),
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "FLUXQUEUE_DATABASE_URL": database_url,
        "DATABASE_URL": database_url,
    }


def _in_namespace(space: Space, folder: Path) -> Path:
    """A kubeconfig that names the test's namespace."""
    config = yaml.safe_load(space.world.kubeconfig.read_text(encoding="utf-8"))
    for context in config["contexts"]:
        context["context"]["namespace"] = space.name
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
    return kubeconfig


@pytest.mark.cases_long("the other pages")
@pytest.mark.parametrize("name", FIRST)
async def test_a_page_shows_what_is_printed(name: str, space: Space, tmp_path: Path) -> None:
    """Each command in turn, in one namespace."""
    await _play(name, space, tmp_path)


@pytest.mark.long("each command is a program that starts; the first pages run in every run")
@pytest.mark.parametrize("name", LATER)
async def test_the_other_pages_do_too(name: str, space: Space, tmp_path: Path) -> None:
    """The same."""
    await _play(name, space, tmp_path)


async def _is_quiet(space: Space) -> bool:
    """Whether no pod holds anything, and no row says so."""
    pods = (await space.client.list(PODS)).items
    alive = [one for one in pods if one["status"].get("phase") not in {"Succeeded", "Failed"}]
    return not alive and not await space.world.rows("SELECT FROM allocations WHERE is_live")


async def _play(name: str, space: Space, folder: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH")
    environ = _shell(folder, _in_namespace(space, folder), space.world.stack.database_url)
    if name in NEEDS_VIEW:
        await space.world.has_view()
        authority = space.world.stack.options.data_dir / "certs" / "ca.crt"
        environ |= {"URL": space.world.stack.view_url, "CA": str(authority)}
    if name in NEEDS_JOBSETS:
        await define(space, JOB_SET)
    console = Console(folder, environ, space.name, skipping(space.world.kind))
    # Where something lies depends on what is still ending there.
    await eventually(lambda: _is_quiet(space), "nothing of others holds a node")
    try:
        await console.play(DOCS / f"{name}.md")
    finally:
        for node in (await space.client.list(NODES)).items:
            if node["spec"].get("unschedulable"):
                undrained = {"spec": {"unschedulable": None}}
                await space.client.patch(NODES, None, node["metadata"]["name"], undrained)


def skipping(kind: str) -> Callable[[str], bool]:
    """A test of commands that cannot run on this kind of cluster."""

    def is_skipped(command: str) -> bool:
        is_without = kind == "real" and WITHOUT_KUBELETS.match(command) is not None
        return is_without or bool(_why_not(command))

    return is_skipped
