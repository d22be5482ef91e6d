"""Asking as three users, under the chart's roles: a viewer, a user of two namespaces, nobody."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError
from fluxqueue.explain.status import HIDDEN
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PLACEMENT_REVIEWS, ROLE_BINDINGS
from tests.e2e.objects import FOR_EVER, job
from tests.e2e.rights import rights_world
from tests.e2e.space import Space, make_space, remove_space
from tests.e2e.test_explain import RBAC, ask
from tests.e2e.world import World
from tests.support import chart_rights
from tests.support.control_plane import missing_reason

pytestmark = [pytest.mark.slow, pytest.mark.real_cluster]


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def world() -> AsyncIterator[World]:
    """A world under the chart's rights; at its end nothing of ours was refused."""
    if reason := missing_reason():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="fluxqueue-asks-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with rights_world(folder) as rights:
            yield rights.world
            assert not chart_rights.missing(rights.uses())


async def _let(space: Space, user: str, role: str) -> None:
    binding = {
        "metadata": {"name": f"{user}-{role}"},
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC}],
        "roleRef": {
            "apiGroup": RBAC,
            "kind": "ClusterRole",
            "name": f"{chart_rights.NAME}-{role}",
        },
    }
    await space.client.create(ROLE_BINDINGS, space.name, binding)


async def _names(space: Space, client: KubeClient, **spec: object) -> set[str]:
    status = (await ask(space, client, **spec))["status"]
    assert status["verdict"] == "Later", status
    return {one["name"] for one in status["blockers"]}


async def test_an_answer_names_what_its_asker_may_read(world: World) -> None:
    """Others' jobs are in the way of all alike, and named to whom may read them only."""
    mine, theirs = await make_space(world), await make_space(world)
    admin = world.client
    vera, ursula, nemo = (admin.acting_as(user) for user in ("vera", "ursula", "nemo"))
    await _let(mine, "vera", "viewer")
    await _let(mine, "ursula", "user")
    await _let(theirs, "ursula", "viewer")
    hour = {"duration": "1h"}
    await theirs.create(job("secret", cpu="9", pool="single", run=FOR_EVER, wishes=hour))
    await theirs.until_state("secret", "Running")
    await mine.create(job("known", cpu="5", pool="single", run=FOR_EVER, wishes=hour))
    await mine.until_state("known", "Running")
    wide = job("wide", cpu="16", pool="single", wishes=hour)
    assert await _names(mine, vera, manifest=wide) == {"known", HIDDEN}
    assert await _names(mine, ursula, manifest=wide) == {"known", "secret"}
    await mine.create(wide)
    await mine.until_state("wide", "Reserved")
    assert await _names(mine, vera, fluxJob="wide-job") == {"known", HIDDEN}
    with pytest.raises(ApiError, match='"nemo" cannot create'):
        await ask(mine, nemo, manifest=wide)
    with pytest.raises(ApiError, match='"vera" cannot create'):
        await ask(theirs, vera, fluxJob="secret-job")
    with pytest.raises(ApiError, match='"vera" cannot list'):
        await vera.list(PLACEMENT_REVIEWS, mine.name)
    # Who may ask, and not read, learns nothing of a FluxJob by its name.
    rule = {"apiGroups": [PLACEMENT_REVIEWS.group], "resources": ["placementreviews"]}
    await admin.create(
        chart_rights.CLUSTER_ROLES,
        None,
        {
            "metadata": {"name": "asks-only"},
            "rules": [{**rule, "verbs": ["create", "get", "delete"]}],
        },
    )
    binding = {
        "metadata": {"name": "nemo-asks"},
        "subjects": [{"kind": "User", "name": "nemo", "apiGroup": RBAC}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "asks-only"},
    }
    await admin.create(ROLE_BINDINGS, mine.name, binding)
    told = (await ask(mine, nemo, fluxJob="wide-job"))["status"]
    assert told["reason"] == "NotFound"
    assert "verdict" not in told
    assert await _names(mine, nemo, manifest=wide) == {HIDDEN}
    await remove_space(mine)
    await remove_space(theirs)
