"""Fixtures that every kind of test may use; what they are made of is in ``tests/support``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxqueue.localpg import LocalPostgres
from tests.support.control_plane import ControlPlane, missing_reason
from tests.support.postgres import PostgresServer, make_migrated_template, running_server
from tests.support.wheel import Installation, build_wheel, install_wheel


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the session: embedded, or the one ``TEST_DATABASE_URL`` names."""
    with running_server() as server:
        yield server


@pytest.fixture
def database_url(postgres: PostgresServer) -> Iterator[str]:
    """A database of the test's own, migrated to head, dropped afterwards."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def empty_database_url(postgres: PostgresServer) -> Iterator[str]:
    """A database of the test's own with nothing in it."""
    url = postgres.create(migrated=False)
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def _postgres_template() -> Iterator[LocalPostgres]:
    with tempfile.TemporaryDirectory(prefix="fluxqueue-test-pg-") as folder:
        Path(folder).chmod(0o755)
        yield make_migrated_template(Path(folder) / "template")


@pytest.fixture
def own_postgres(_postgres_template: LocalPostgres) -> Iterator[LocalPostgres]:
    """A running server of the test's own, migrated, for tests that kill or restart it."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-test-pg-") as folder:
        Path(folder).chmod(0o755)
        server = LocalPostgres(Path(folder) / "server", durable=False)
        server.data.copy_from(_postgres_template.data)
        with server:
            yield server


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real control plane for the session; tests that use it are marked ``real_cluster``."""
    if reason := missing_reason():
        pytest.skip(reason)
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built from this tree."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment outside the tree with the wheel in it."""
    return install_wheel(wheel, tmp_path_factory.mktemp("installed") / "env")
