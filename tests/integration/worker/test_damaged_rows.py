"""A damaged value in any row that the cycle reads: its job shows it, and all others go on.

Damage is what a restored or edited database may hold. The tests write it with SQL, as no release
of fluxqueue does.
"""

from __future__ import annotations

import pytest

from fluxqueue.kube.client import KubeClient
from localcluster import LocalCluster
from tests.support.rows import Rows, cpu_node
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import is_released, rows_of, submit, worker

SLOTS = {
    "no mapping": "resources = '7'",
    "a list": "resources = '[1]'",
    "null": "resources = 'null'",
    "a text": """resources = '{"cpu": "many"}'""",
    "nested": """resources = '{"cpu": {"a": 1}}'""",
    "negative": """resources = '{"cpu": -5}'""",
    "too large": """resources = '{"cpu": 99999999999999999999999}'""",
    "a null amount": """resources = '{"cpu": null}'""",
}
"""What each slot of a running job may become."""
TERMS = {
    "begins never": "starts_at = 9223372036854775807",
    "ends never": "until = -9223372036854775808",
}
HARMLESS = {
    "ended before it began": "until = 1, starts_at = 2",
    "holds no node": "held = ARRAY[NULL, '', 'nowhere']::text[]",
}
"""Values that can be booked."""


async def _first(rows: Rows, admin: KubeClient, cluster: LocalCluster, url: str) -> str:
    """Start a job on one of two nodes, and return its UID."""
    await rows.add_nodes(cpu_node("n0", cpu=4), cpu_node("n1", cpu=4))
    uid = await submit(rows, admin, "first")
    async with worker(url, cluster):
        await eventually(lambda: is_released(admin, "first"), "the first starts")
    return uid


async def _told(rows: Rows) -> list[str]:
    found = await dicts(rows.database, "SELECT reason FROM quarantine WHERE held_by = 'stalled'")
    return [row["reason"] for row in found]


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("damage", [*SLOTS, *TERMS])
async def test_an_allocation_that_cannot_be_read_holds_its_node_and_is_told(
    database_url: str, cluster: LocalCluster, admin: KubeClient, damage: str
) -> None:
    """Read at the start, and again when it is mended: then it is reported no more."""
    async with rows_of(database_url) as rows:
        uid = await _first(rows, admin, cluster, database_url)
        before = await dicts(rows.database, "SELECT to_jsonb(resources) AS r FROM allocation_slots")
        table, change = (
            ("allocation_slots", SLOTS[damage])
            if damage in SLOTS
            else ("allocations", TERMS[damage])
        )
        await rows.execute(f"UPDATE {table} SET {change}")
        await submit(rows, admin, "second")
        async with worker(database_url, cluster):
            await eventually(lambda: is_released(admin, "second"), "the second starts")
            nodes = await dicts(
                rows.database,
                "SELECT s.node, a.uid FROM allocation_slots s"
                " JOIN allocations a ON a.id = s.allocation_id",
            )
            assert len({row["node"] for row in nodes}) == len(nodes) == 2

            await eventually(lambda: _told(rows), "the damage is told")
            (reason,) = await _told(rows)
            assert "its allocation cannot be read" in reason
            await rows.execute(
                "UPDATE allocation_slots SET resources = CAST(:r AS jsonb)"
                " WHERE allocation_id = (SELECT id FROM allocations WHERE uid = :uid)",
                r=str(before[0]["r"]).replace("'", '"'),
                uid=uid,
            )
            await rows.execute(
                "UPDATE allocations SET starts_at = 1, until = NULL WHERE uid = :uid", uid=uid
            )
            await rows.execute(
                "INSERT INTO graph_changes (kind, key)"
                " SELECT 'allocation', id::text FROM allocations WHERE uid = :uid",
                uid=uid,
            )
            await submit(rows, admin, "third")
            await eventually(lambda: is_released(admin, "third"), "the third starts")

            await until(lambda: _told(rows), lambda found: not found, "it is told no more")


OTHERS = {
    "held": "UPDATE allocations SET held = ARRAY[NULL, '', 'nowhere']::text[]",
    "ends before it begins": "UPDATE allocations SET until = 1, starts_at = 2",
    "a slot on no node": "UPDATE allocation_slots SET node = ''",
    "a slot of no kind": "UPDATE allocation_slots SET kind = repeat('x', 9000)",
    "granted": "UPDATE allocation_slots SET granted = '[1]'",
    "foreign, no mapping": """INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)
        VALUES ('u', 'x', 'x', 'n9', '7')""",
    "foreign, a text": """INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)
        VALUES ('u', 'x', 'x', 'n9', '{"cpu": "all"}')""",
    "foreign, null": """INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)
        VALUES ('u', '', '', 'n9', '{"cpu": null, "memory": 1}')""",
    "foreign, negative": """INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)
        VALUES ('u', 'x', 'x', 'n9', '{"cpu": -1e30}')""",
    "foreign, a fraction": """INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)
        VALUES ('u', 'x', 'x', 'n9', '{"cpu": 0.5, "x y": 1e40}')""",
    "unmanaged": """UPDATE pods SET unmanaged = '"all"', node = 'n9'""",
    "a change of no number": "INSERT INTO graph_changes (kind, key) VALUES ('allocation', 'x')",
    "a change of a huge number": """INSERT INTO graph_changes (kind, key)
        VALUES ('allocation', repeat('9', 40)), ('node', repeat('n', 9000)), ('queue', '')""",
    "namespaces of a queue": """INSERT INTO fluxqueues (name, namespaces) VALUES ('odd', '7')""",
    "spec of a queue": """INSERT INTO fluxqueues (name, spec) VALUES ('odd', '[7]')""",
    "limits of a queue": """INSERT INTO fluxqueues (name, spec) VALUES
        ('odd', '{"limits": {"total": {"cpu": "x"}, "perUser": []}, "policy": 7}')""",
    "a reservation": """INSERT INTO reservations (uid, starts_at, nodes)
        SELECT uid, 9223372036854775807, '7' FROM fluxjobs WHERE workload_name = 'second'""",
    "a reservation of no node": """INSERT INTO reservations (uid, starts_at, until, nodes)
        SELECT uid, -1, -5, '["nowhere"]' FROM fluxjobs WHERE workload_name = 'second'""",
    "what was told": """UPDATE fluxjobs SET wait_reason = 'Bored', expected_start = now(),
        position = -7 WHERE workload_name = 'second'""",
}


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("damage", OTHERS)
async def test_a_damaged_value_stops_no_cycle(
    database_url: str, cluster: LocalCluster, admin: KubeClient, damage: str
) -> None:
    """As it is read at the start, and as a change."""
    async with rows_of(database_url) as rows:
        await _first(rows, admin, cluster, database_url)
        await rows.add_nodes(cpu_node("n9", cpu=4))
        await submit(rows, admin, "second")
        await rows.execute(OTHERS[damage])
        async with worker(database_url, cluster):
            await eventually(lambda: is_released(admin, "second"), "the second starts")
            await rows.execute(
                "INSERT INTO graph_changes (kind, key) VALUES ('node', 'n9'), ('node', 'n0')"
            )
            await rows.execute(
                "INSERT INTO graph_changes (kind, key)"
                " SELECT 'allocation', id::text FROM allocations"
            )
            await submit(rows, admin, "third")
            await eventually(lambda: is_released(admin, "third"), "the third starts")
