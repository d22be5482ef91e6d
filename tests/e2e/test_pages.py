"""The commands of the documentation print what its pages show, on the cluster of these tests.

Every command of every ``console`` block is run, but for those of ``CANNOT_RUN``.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from fluxqueue.kube.resources import NODES, PODS
from fluxqueue_devtools.localpg.binaries import find_binaries
from tests.support.console import BLOCK, Command, Console, commands
from tests.support.e2e.custom_kinds import JOB_SET, define
from tests.support.e2e.pages import CANNOT_RUN, DOCS, ROOT, in_namespace, skipping, why_not
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

FIRST = ("user/run", "user/waiting", "developer/extending")
"""Pages that run in every run. The others are played in ``make test-long``."""


NEEDS_VIEW = ("user/cli", "reference/view")
NEEDS_JOBSETS = ("user/groups",)
OF_ITS_OWN = ("user/try", "user/tutorial")
"""Pages that need ``make up`` itself: ``test_walks`` plays them."""


def _commands(page: Path) -> list[Command]:
    text = page.read_text(encoding="utf-8")
    return [one for block in BLOCK.findall(text) for one in commands(block)]


def _pages() -> list[str]:
    """Pages with a command that can be run."""
    return [
        str(page.relative_to(DOCS).with_suffix(""))
        for page in sorted(DOCS.rglob("*.md"))
        if any(not why_not(one.text) for one in _commands(page))
    ]


LATER = [page for page in _pages() if page not in (*FIRST, *OF_ITS_OWN)]


def test_no_command_stands_where_nobody_runs_it() -> None:
    """Prompts stand in ``console`` blocks. What cannot be run is there, and is named once."""
    texts = [page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *DOCS.rglob("*.md"))]
    for text in texts:
        assert not re.findall(r"^ *\$ .*", BLOCK.sub("", text), re.MULTILINE)
    there = [one.text for page in DOCS.rglob("*.md") for one in _commands(page)]
    assert not [form for form in CANNOT_RUN if not any(re.match(form, one) for one in there)]
    readme = _commands(ROOT / "README.md")
    assert readme
    assert all(why_not(one.text) for one in readme), "no test plays it"


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
    environ = _shell(folder, in_namespace(space, folder), space.world.stack.database_url)
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
