"""Fixtures that every kind of test may use. What they are made of is in ``tests/support``."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from fluxqueue_devtools.localpg import LocalPostgres
from tests.support import examples, order
from tests.support.control_plane import ControlPlane, missing_reason
from tests.support.embedded_plane import Plane, embedded_plane
from tests.support.once import made_once, shared_folder
from tests.support.postgres import (
    PostgresServer,
    copied_server,
    make_migrated_template,
    running_server,
)
from tests.support.wheel import ROOT, Installation, build_wheel, install_wheels

REAL = pytest.mark.real_cluster
RANDOM_VARIABLE = "FLUXQUEUE_TEST_RANDOM"

# How fast a machine is decides no test, and a change that breaks nothing fails none: each run draws
# the same examples of the present code. ``FLUXQUEUE_TEST_RANDOM=1`` draws others each time.
hypothesis.settings.register_profile(
    "fluxqueue",
    parent=hypothesis.settings.get_profile("default"),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=not os.environ.get(RANDOM_VARIABLE),
    print_blob=True,
)
hypothesis.settings.load_profile("fluxqueue")

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every process
# that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


pytest_plugins = ["tests.support.long"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In each of several processes the order and the groups are the same.

    First of all, since pytest-xdist reads the groups in the same hook.
    """
    examples.draw_fewer(items)
    if hasattr(config, "workerinput"):
        order.arrange(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Groups that are not kept cost a world in each process, and no test notices."""
    is_grouping = hasattr(session.config, "workerinput") and session.config.option.loadgroup
    if is_grouping and (stray := order.strays(session.items)):
        raise pytest.UsageError(f"pytest-xdist does not know the group of {stray[0].nodeid}")


@pytest.fixture(scope="session", autouse=True)
def _shared_bytecode(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests start compiles our modules once, not once in each process and at each restart.

    Where the environment forbids bytecode beside the sources it may stand in a folder of ours.
    """
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE")
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared_folder(tmp_path_factory) / "bytecode"))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the session: embedded, or the one ``TEST_DATABASE_URL`` names."""
    with running_server() as server:
        yield server


@pytest.fixture
def database_url(request: pytest.FixtureRequest, postgres: PostgresServer) -> Iterator[str]:
    """A database at head with nothing in it. One that no other test has had where so marked."""
    if request.node.get_closest_marker("own_database") is None:
        yield postgres.wiped()
        return
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
    with copied_server(_postgres_template) as server, server:
        yield server


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real control plane for the session. Tests that use it are marked ``real_cluster``."""
    if reason := missing_reason():
        pytest.skip(reason)
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=REAL)])
def plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Plane]:
    """A cluster without nodes, embedded or real, on which rights and policies are in force."""
    if request.param == "real":
        yield request.getfixturevalue("control_plane")
        return
    folder = tmp_path_factory.mktemp("plane")
    with embedded_plane(folder, ("--quick", "--nodes", "0")) as running:
        yield running


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built from this tree."""
    folder = made_once(shared_folder(tmp_path_factory) / "wheel", build_wheel)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An environment outside the tree with the wheels of both projects in it."""
    shared = shared_folder(tmp_path_factory)
    made = made_once(shared / "localcluster", lambda at: build_wheel(at, ROOT / "localcluster"))
    wheels = [wheel, *made.glob("*.whl")]
    folder = made_once(shared / "installed", lambda at: install_wheels(wheels, at))
    return Installation(folder)
