"""``fluxqueue demo`` as a newcomer runs it, in its short form."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import browsing, missing_browser

FIGURES = re.compile(
    r"jobs=(?P<jobs>\d+) pods=(?P<pods>\d+) makespan=[\d.]+s utilisation=\d+%"
    r" mean_wait=[\d.]+s leaked=(?P<leaked>\d+)"
)
JOBS = 30


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path (unix sockets), readable for the database server's own user."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-demo-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


async def start_demo(folder: Path, *more: str) -> asyncio.subprocess.Process:
    """Start the command with its output in a pipe, so that it prints lines."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fluxqueue", "demo", "--jobs", str(JOBS), *more),
        *("--data-dir", str(folder / "data")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.slow
@pytest.mark.long("the whole of `make demo`, which plays for a minute")
async def test_the_demo_loses_nothing_and_leaks_nothing(folder: Path) -> None:
    """Four scenes, each with its figures. Two pods at once where only two fit. Exit code 0."""
    process = await start_demo(folder)
    out, _ = await process.communicate()
    text = out.decode()
    assert process.returncode == 0, text
    lines = text.splitlines()
    scenes = [match for line in lines[:-1] if (match := FIGURES.search(line))]
    last = FIGURES.fullmatch(lines[-1])
    assert last is not None, text
    assert [match["jobs"] for match in scenes] == ["4", "5", str(JOBS), "1"]
    assert {match["leaked"] for match in (*scenes, last)} == {"0"}
    # Four pods that fail once and are replaced, and one Job that is tried twice and given up.
    assert [match["pods"] for match in scenes[:2]] == ["4", "10"]
    assert text.count("never more than 2 at once") == 2
    assert (
        "needs 40 cpu on one node; the largest of the 20 nodes (of 21) that it may use has 32"
        in text
    )
    assert re.search(r"train was Provisioning .*: 4 nodes of pool gpu asked for at", text)
    assert re.search(r"watched: 4 nodes came within [\d.]+ s, and 4 had gone after", text)
    assert last["jobs"] == str(JOBS), "the last line is of the largest scene"
    assert "invariants checked: 0 broken" in text


@pytest.mark.slow
@pytest.mark.long("the demo with its page, in a browser")
@pytest.mark.skipif(missing_browser() is not None, reason=str(missing_browser()))
async def test_the_demo_in_the_window(folder: Path) -> None:
    """`--web` shows the jobs live. Ctrl-C in the middle stops all parts."""
    process = await start_demo(folder, "--web", "--no-open")
    assert process.stdout is not None
    address = ""
    async for line in process.stdout:
        if line.startswith(b"page "):
            address = line.split()[1].decode()
            break

    def look() -> None:
        with browsing() as page:
            page.open(address)
            page.says("21 nodes", ".bar")
            page.run("location.hash = '#/queue'")
            page.says("Running", "tbody")

    await asyncio.to_thread(look)
    process.send_signal(signal.SIGINT)
    out, _ = await process.communicate()
    assert b"interrupted" in out
    assert process.returncode == 1
    assert not _processes_below(folder), "parts were left running"


@pytest.mark.long("a demo of its own. `make demo` shows it")
@pytest.mark.slow
async def test_the_demo_ends_clean_when_asked_to(folder: Path) -> None:
    """SIGTERM in the middle of a scene: it stops all parts, says so, and has not succeeded."""
    process = await start_demo(folder)
    assert process.stdout is not None
    async for line in process.stdout:
        if b"Running on" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, _ = await process.communicate()
    assert process.returncode == 1
    assert b"interrupted" in out
    assert not _processes_below(folder), "parts were left running"


def _processes_below(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        if str(folder) in command:
            found.append(command)
    return found
