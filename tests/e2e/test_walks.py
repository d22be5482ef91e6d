"""Newcomers walk through the pages: a fresh clone, one shell, and every command as printed.

The shell knows what ``docs/user/try.md`` says and nothing else. The pages run one after the other
in the cluster of ``make up``, so each one leaves it as it found it. ``test_pages`` plays single
pages in the cluster of the tests.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.console import BLOCK, Console, agree, commands
from tests.support.e2e.pages import DOCS, skipping
from tests.support.fresh_clone import is_possible, make_clone
from tests.support.terminal import COLUMNS, Terminal

pytestmark = [
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on PATH"),
    pytest.mark.skipif(not is_possible(), reason="this is not a checkout"),
    pytest.mark.timeout(1500),
]

READY = "ready (Ctrl-C stops it)"
START_S = 200.0
FOLDER = "/home/ada/fluxqueue"
"""The folder of the clone in the pages."""


@pytest.fixture
def clone() -> Iterator[Path]:
    """A fresh clone with a short name, as on the machine of a user."""
    with tempfile.TemporaryDirectory(prefix="fq", ignore_cleanup_errors=True) as name:
        folder = Path(name) / "fluxqueue"
        folder.mkdir()
        Path(name).chmod(0o755)  # where the server runs as another user it must reach its data
        make_clone(folder)
        yield folder


def _bare(folder: Path) -> dict[str, str]:
    """The shell of a user without any installation."""
    here = os.environ["PATH"].split(":")
    paths = [one for one in here if ".venv" not in one and "fluxqueue" not in one]
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    # Times of the pages are UTC. Everything else is the default of a terminal.
    return {"PATH": ":".join(paths), "HOME": str(home), "TZ": "UTC", "LANG": "C.UTF-8"}


@asynccontextmanager
async def _up(clone: Path) -> AsyncIterator[str]:
    """``make up`` in its terminal. Gives what it has printed when it is ready."""
    async with Terminal("exec make up", folder=clone, environ=_bare(clone)) as terminal:
        try:
            async with asyncio.timeout(START_S):
                while READY not in terminal.printed:
                    assert await terminal.more(START_S), terminal.printed
            yield terminal.printed
        finally:  # also after a failure: nothing of it may stay behind
            os.killpg(terminal.process.pid, signal.SIGINT)
            async with asyncio.timeout(START_S):
                await terminal.end()


def _pages(caption: str) -> list[Path]:
    """The pages below a caption of the table of contents, in its order."""
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    found = re.search(rf":caption: {caption}\n(.*?)```", index, re.DOTALL)
    assert found is not None
    pages = [DOCS / f"{name}.md" for name in found[1].split()]
    return [page for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


@pytest.mark.long("a `make up`, and every command of every page for users")
async def test_a_data_scientist_walks_through_the_pages_for_users(clone: Path) -> None:
    """From ``make up`` to the last page, in their order, in one shell."""
    async with _up(clone) as printed:
        first = commands(BLOCK.findall((DOCS / "user/try.md").read_text(encoding="utf-8"))[0])[0]
        assert first.text == "make up"
        assert agree(first.shown, printed.replace(str(clone), FOLDER)), printed
        assert all(len(line) <= COLUMNS for line in printed.splitlines()), printed
        exports = [line.strip() for line in printed.splitlines() if "  export " in line]
        console = Console(clone, _bare(clone), "default", skipping("embedded"))
        for page in _pages("User"):
            await console.play(page)
        # The printed lines and those of the page mean the same.
        copied = Terminal(
            "; ".join([*exports, "command -v fluxqueue psql", "fluxqueue jobs -A -o name"]),
            folder=clone.parent,
            environ=_bare(clone),
        )
        async with copied as terminal:
            assert str(clone / ".fluxqueue/bin/psql") in await terminal.end()
            assert terminal.process.returncode == 0, terminal.printed


@pytest.mark.long("a `make up`, and the commands of the pages for administrators and developers")
@pytest.mark.parametrize("caption", ["Administrator", "Developer", "Reference"])
async def test_an_administrator_and_a_contributor_walk_through_theirs(
    clone: Path, caption: str
) -> None:
    """In a shell that did what ``user/try.md`` says, and with the environment of the clone."""
    paths = f"{clone}/.fluxqueue/bin:{clone}/.venv/bin:{_bare(clone)['PATH']}"
    environ = {**_bare(clone), "PATH": paths, "KUBECONFIG": f"{clone}/.fluxqueue/kubeconfig"}
    async with _up(clone):
        console = Console(clone, environ, "default", _skipped)
        for page in _pages(caption):
            await console.play(page)


def _skipped(command: str) -> bool:
    """What ``test_pages`` skips, and Helm, which that test replaces."""
    return skipping("embedded")(command) or command.startswith("helm ")
