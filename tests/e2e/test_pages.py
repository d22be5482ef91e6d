"""The commands of the documentation print what its pages show, on the cluster of these tests."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.space import Space
from tests.support.console import Console

ROOT = Path(__file__).parents[2]
PAGES = ("user/run", "user/waiting", "developer/extending")
LATER_PAGES = ("user/changing", "user/mpi", "user/gpus", "admin/policies")


def _environ(space: Space, folder: Path) -> dict[str, str]:
    """A shell whose kubeconfig names the test's namespace, with our programs on the path."""
    config = yaml.safe_load(space.world.kubeconfig.read_text(encoding="utf-8"))
    for context in config["contexts"]:
        context["context"]["namespace"] = space.name
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config), encoding="utf-8")
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "KUBECONFIG": str(kubeconfig),
        "COLUMNS": "160",
        "TZ": "UTC",
        "LANG": "C.UTF-8",
        "FLUXQUEUE_DATABASE_URL": space.world.stack.database_url,
        "DATABASE_URL": space.world.stack.database_url,
    }


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_shows_what_is_printed(name: str, space: Space, tmp_path: Path) -> None:
    """Each command in turn, in one namespace."""
    await _play(name, space, tmp_path)


@pytest.mark.long("each command is a program that starts; the first pages run in every run")
@pytest.mark.parametrize("name", LATER_PAGES)
async def test_the_other_pages_do_too(name: str, space: Space, tmp_path: Path) -> None:
    """The same."""
    await _play(name, space, tmp_path)


async def _play(name: str, space: Space, tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not on PATH")
    console = Console(ROOT, _environ(space, tmp_path), space.name)
    await console.play(ROOT / "docs" / f"{name}.md")
