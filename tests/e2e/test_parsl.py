"""A program of Parsl, in an environment with Parsl's packages. Its workers run in the queue."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from fluxqueue.kube.resources import JOBS
from tests.support.e2e.pages import in_namespace
from tests.support.e2e.space import Space
from tests.support.host_programs import host_programs
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "parsl.lock"
INSTALL_S = 300
RUN_S = 240


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the packages of the lock, and nothing else."""
    folder = tmp_path_factory.mktemp("parsl") / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=INSTALL_S)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--require-hashes"]
    done = subprocess.run(
        [*pip, "--retries", "0", "-r", str(LOCK), "-c", str(LOCK)],
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no package index answers here: {done.stderr.strip().splitlines()[-1:]}")
    return folder / "bin"


@pytest.mark.long("installs Parsl from the package index, and starts its processes")
async def test_a_parsl_program_works_through_the_queue(
    space: Space, environment: Path, tmp_path: Path
) -> None:
    """Its block is a Job, its tasks have their values, and the end of the program deletes it."""
    if space.world.kind == "real":
        pytest.skip("the workers are processes of this machine")
    environ = {
        "PATH": f"{environment}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": str(in_namespace(space, tmp_path)),
        "HOME": str(tmp_path),
    }
    async with host_programs(space.client, space.name, environ):
        process = await asyncio.create_subprocess_exec(
            str(environment / "python"),
            *(str(ROOT / "tests" / "support" / "parsl_program.py"), str(tmp_path / "runs")),
            env=environ,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=tmp_path,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(RUN_S):
                printed = (await process.stdout.read()).decode()
                assert await process.wait() == 0, printed
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert "[0, 1, 4, 9, 16, 25, 36, 49]" in printed
        assert " RUNNING" in printed

        await until(
            lambda: space.client.list(JOBS, space.name),
            lambda found: not found.items,
            "the block is deleted",
        )
