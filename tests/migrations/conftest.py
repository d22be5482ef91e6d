"""Every migration test runs on each Postgres version that this machine has.

On the newest in ``make test``, on the others in ``make test-long``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fluxqueue_devtools.localpg import PostgresBinaries
from tests.support.postgres import PostgresServer, by_major, running_server


@pytest.fixture(scope="session", params=by_major())
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
