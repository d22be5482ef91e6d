"""One row that cannot be read or decided is set aside with its reason, and all others go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from fluxqueue.kube.client import KubeClient
from localcluster import LocalCluster
from tests.support.rows import Rows, cpu_node
from tests.support.waiting import eventually
from tests.support.workers import is_released, rows_of, submit, worker


def _unequal(kinds: int) -> dict[str, Any]:
    """So many kinds of pods beside each other, of which only some fit: costly to try."""
    slots = [
        {
            "type": "slot",
            "count": 1,
            "label": f"q{i}",
            "with": [{"type": "cpu", "count": 100 + i % 7, "unit": "m"}],
        }
        for i in range(kinds)
    ]
    return {"version": 9999, "resources": slots, "tasks": [], "attributes": {"system": {}}}


POISON: Mapping[str, tuple[Any, str]] = {
    "no jobspec at all": ({"resources": 7}, "quarantine"),
    "of another version": ({"version": 1, "what": []}, "quarantine"),
    "not even a mapping": ([1, 2], "quarantine"),
    "too much to decide": (_unequal(420), "too-complex"),
}


async def _store(rows: Rows, uid: str, request: Any) -> None:
    """Put a request into a row, as damage or other software may."""
    await rows.execute(
        "UPDATE fluxjobs SET request = CAST(:request AS jsonb), is_examined = false"
        " WHERE uid = :uid",
        uid=uid,
        request=orjson.dumps(request).decode(),
    )


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("name", POISON)
async def test_one_row_holds_up_itself_alone(
    database_url: str, cluster: LocalCluster, admin: KubeClient, name: str
) -> None:
    request, holder = POISON[name]
    async with rows_of(database_url) as rows:
        await rows.add_nodes(*(cpu_node(f"n{n}", cpu=8000) for n in range(4)))
        poison = await submit(rows, admin, "poison")
        await _store(rows, poison, request)
        await submit(rows, admin, "behind")
        async with worker(database_url, cluster):
            await eventually(lambda: is_released(admin, "behind"), "the one behind starts")

            async def is_aside() -> bool:
                said = "SELECT count(*) FROM quarantine WHERE held_by = :holder"
                return bool(await rows.value(said, holder=holder) == 1)

            await eventually(is_aside, "the row is listed with its reason")
            assert await rows.value("SELECT reason FROM quarantine") != ""
            await submit(rows, admin, "later")
            await eventually(lambda: is_released(admin, "later"), "later ones start")
            # What is mended is tried again by a worker of another version.
            good = await rows.value(
                "SELECT request::text FROM fluxjobs WHERE workload_name = 'behind'"
            )
            await _store(rows, poison, orjson.loads(good))
            await rows.execute(
                "UPDATE fluxjobs SET quarantined_by = '0' WHERE uid = :uid", uid=poison
            )
        async with worker(database_url, cluster):
            await eventually(lambda: is_released(admin, "poison"), "other software tries it again")
            assert await rows.value("SELECT count(*) FROM quarantine") == 0


async def test_a_row_that_is_damaged_behind_the_head_is_found(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """One that was examined before, and waits for room: found when the cycle comes to it."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(cpu_node("n0", cpu=1))
        async with worker(database_url, cluster):
            await submit(rows, admin, "first")
            await eventually(lambda: is_released(admin, "first"), "it has the node")
            waiting = await submit(rows, admin, "waiting")
            seen = "SELECT is_examined FROM fluxjobs WHERE workload_name = 'waiting'"

            await eventually(lambda: rows.value(seen), "it waits")
            await rows.execute("UPDATE fluxjobs SET request = '{}' WHERE uid = :uid", uid=waiting)
            await rows.add_nodes(cpu_node("n1", cpu=1))
            await submit(rows, admin, "third")
            await eventually(lambda: is_released(admin, "third"), "the third has the new node")
            assert (await rows.states())[waiting] == "Held"
