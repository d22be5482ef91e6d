"""The migrations on the Postgres images that users run, where a Docker engine is at hand."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from fluxqueue.db import migrate

IMAGES = ("postgres:15", "postgres:16", "postgres:17", "postgres:18")

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.long("starts and migrates each supported Postgres"),
]


def has_engine() -> bool:
    """Whether a Docker engine answers, not only a client."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    return subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


@pytest.fixture(params=IMAGES)
def image_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a server from one image."""
    if not has_engine():
        pytest.skip("no Docker engine answers here")
    from testcontainers.postgres import PostgresContainer

    with PostgresContainer(request.param, driver=None) as container:
        yield container.get_connection_url()


def test_up_check_down(image_url: str) -> None:
    """Empty to head agrees with the tables, and back to empty."""
    migrate.upgrade(image_url)
    assert migrate.check(image_url) == []
    migrate.downgrade(image_url, migrate.BASE)
    assert migrate.current(image_url) is None
