"""Fixtures of the tests of packaging."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.wheel import pins


@pytest.fixture(scope="session")
def package_index(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip where no package index answers. One small wheel tells."""
    folder = tmp_path_factory.mktemp("probe")
    version = pins("requirements/webhook.lock")["idna"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0"]
    done = subprocess.run(
        [*pip, "--timeout", "20", "--dest", str(folder), f"idna=={version}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no package index answers here: {done.stderr.strip().splitlines()[-1:]}")
