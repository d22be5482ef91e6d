"""Pods of groups, and what their tests wait for."""

from __future__ import annotations

from typing import Any

from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS, ROLE_BINDINGS
from tests.support.e2e.objects import Obj, bare_pod
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until


def member(name: str, group: str, size: int | str, *, cpu: str = "1", **more: Any) -> Obj:
    """A Pod of a group, of the pool ``main``."""
    pod = bare_pod(name, cpu=cpu, nodeSelector={"pool": "main"}, **more)
    pod["metadata"]["labels"] = {"fluxqueue/pod-group": group, "fluxqueue/group-size": str(size)}
    return pod


async def until_reason(space: Space, group: str, state: str, words: str) -> Obj:
    """Until its FluxJob is in ``state`` and says ``words``."""

    async def look() -> Obj | None:
        found = await space.fluxjob(group)
        status = (found or {}).get("status") or {}
        is_so = status.get("state") == state and words in status.get("reason", "")
        return found if is_so else None

    return await eventually(look, what=f"{group} {state}: {words}")


async def phases(space: Space) -> dict[str, str]:
    """Of all pods of the namespace."""
    pods = (await space.client.list(PODS, space.name)).items
    return {pod["metadata"]["name"]: pod["status"].get("phase", "Pending") for pod in pods}


SIZES = (2, 4, 4, 4, 5, 6)


async def create_mixed(space: Space, pods: list[tuple[int, Obj]]) -> None:
    """Make the pods of several groups in the order of their numbers, each with its number."""
    firsts = [pod for number, pod in pods if not number]
    for count, pod in enumerate(firsts, 1):
        await space.create(pod)
        await until_queued(space, count)
    await space.create_all(pod for number, pod in sorted(pods, key=lambda pair: pair[0]) if number)


async def until_queued(space: Space, count: int) -> None:
    """Until so many are known to the queue: their order is that in which they became known."""
    sql = "SELECT count(*) AS n FROM fluxjobs WHERE namespace = :namespace"

    await until(
        lambda: space.world.rows(sql, namespace=space.name),
        lambda found: found == [{"n": count}],
        f"{count} are queued",
    )


async def assert_each_ran_once_in_order(space: Space) -> None:
    """Of ``SIZES``: one allocation each, with all its slots, and in the order of their names."""
    rows = await space.world.rows(
        "SELECT f.workload_name AS name, count(DISTINCT a.id) AS runs, count(*) AS slots"
        " FROM fluxjobs f JOIN allocations a USING (uid)"
        " JOIN allocation_slots s ON s.allocation_id = a.id"
        " WHERE f.namespace = :namespace GROUP BY 1 ORDER BY min(a.id)",
        namespace=space.name,
    )
    assert [(row["runs"], row["slots"]) for row in rows] == [(1, size) for size in SIZES]
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)


async def acting(space: Space, user: str) -> KubeClient:
    """A client of a user who may make pods in this namespace."""
    rbac = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": user},
        "subjects": [{"kind": "User", "name": user, "apiGroup": rbac}],
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "admin"},
    }
    await space.client.create(ROLE_BINDINGS, space.name, binding)
    acting = space.client.acting_as(user)

    async def may_make() -> bool:
        """The API server reads rights some time after they are written."""
        try:
            await acting.create(PODS, space.name, bare_pod("may-i"), dry_run=True)
        except ApiError:
            return False
        return True

    await eventually(may_make, f"{user} may make pods")
    return acting
