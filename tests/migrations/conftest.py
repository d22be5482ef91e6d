"""Every migration test runs on each Postgres version that this machine has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluxqueue.localpg import PostgresBinaries
from fluxqueue.localpg.binaries import installed_binaries
from tests.support.postgres import PostgresServer, running_server

BY_MAJOR = {binaries.major: binaries for binaries in reversed(list(installed_binaries()))}


@pytest.fixture(
    scope="session", params=BY_MAJOR.values(), ids=[f"postgres{major}" for major in BY_MAJOR]
)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A server of one version."""
    binaries: PostgresBinaries = request.param
    with running_server(binaries) as found:
        yield found


@pytest.fixture
def url(server: PostgresServer) -> Iterator[str]:
    """An empty database on it."""
    made = server.create(migrated=False)
    yield made
    server.drop(made)
