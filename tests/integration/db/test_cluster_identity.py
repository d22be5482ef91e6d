"""A database belongs to one cluster: another one's processes can take no role in it."""

from __future__ import annotations

import asyncio

import pytest

from fluxqueue.db import cluster_identity, leadership
from fluxqueue.db.database import Database
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.errors import LostLeadership, WrongCluster
from tests.support.rows import settings_for
from tests.support.sql import dicts

HOME, AWAY = "uid-of-home", "uid-of-away"


def _open(url: str, role: str = "test") -> Database:
    return Database(settings_for(url), role=role)


async def test_the_first_one_binds_it_and_the_same_cluster_is_welcome(database_url: str) -> None:
    """Also many at once."""
    async with _open(database_url) as one, _open(database_url) as two:
        await asyncio.gather(
            *(cluster_identity.bind(each, HOME, "https://home") for each in (one, two, one))
        )
        async with one.begin() as tx:
            bound = await cluster_identity.read(tx)
        assert bound is not None
        assert (bound.uid, bound.server) == (HOME, "https://home")
        assert await leadership.seize(two, "controller", "b") == 1


async def test_two_clusters_at_once_are_never_both_taken(database_url: str) -> None:
    """One of them binds it, the other is refused."""
    async with _open(database_url) as one, _open(database_url) as two:
        found = await asyncio.gather(
            cluster_identity.bind(one, HOME, "https://home"),
            cluster_identity.bind(two, AWAY, "https://away"),
            return_exceptions=True,
        )
    assert sorted(type(one).__name__ for one in found) == ["NoneType", "WrongCluster"]


async def test_another_cluster_is_refused_and_both_are_named(database_url: str) -> None:
    async with _open(database_url) as home, _open(database_url) as away:
        await cluster_identity.bind(home, HOME, "https://home")
        with pytest.raises(WrongCluster, match=rf"{HOME}.*https://home.*{AWAY}.*adopt-cluster"):
            await cluster_identity.bind(away, AWAY, "https://away")
        async with DatabaseReader(settings_for(database_url), role="view") as reader:
            await cluster_identity.check_reader(reader, HOME)
            with pytest.raises(WrongCluster):
                await cluster_identity.check_reader(reader, AWAY)


async def test_a_process_that_was_bound_before_a_move_takes_no_role(database_url: str) -> None:
    """It runs on in the former cluster. Nothing that it writes under its term is committed."""
    async with _open(database_url) as former, _open(database_url) as admin:
        await cluster_identity.bind(former, HOME, "https://home")
        term = await leadership.seize(former, "controller", "old")
        await cluster_identity.adopt(admin, former=HOME, uid=AWAY, server="https://away")
        with pytest.raises(LostLeadership):
            async with former.begin() as tx:
                await leadership.check_term(tx, "controller", term)
        with pytest.raises(WrongCluster):
            await leadership.seize(former, "controller", "old")
        with pytest.raises(WrongCluster):
            await leadership.try_acquire(former, "matcher", "old", duration_s=5)
        async with _open(database_url) as new:
            await cluster_identity.bind(new, AWAY, "https://away")
            assert await leadership.seize(new, "controller", "new") > term


async def test_a_move_names_the_former_cluster_and_waits_for_its_parts(database_url: str) -> None:
    """A slip in the UID, and parts that still run, change nothing. Twice is once."""
    move = {"uid": AWAY, "server": "https://away"}
    async with _open(database_url) as admin:
        with pytest.raises(WrongCluster, match="bound to none"):
            await cluster_identity.adopt(admin, former=HOME, **move)
        await cluster_identity.bind(admin, HOME, "https://home")
        with pytest.raises(WrongCluster, match=f"bound to {HOME}, not to slip"):
            await cluster_identity.adopt(admin, former="slip", **move)
        async with _open(database_url, "worker") as worker:
            async with worker.begin() as tx:
                await dicts(tx, "SELECT 1")
            with pytest.raises(WrongCluster, match="fluxqueue-worker are connected"):
                await cluster_identity.adopt(admin, former=HOME, **move)

        async def is_moved() -> bool:
            try:
                await cluster_identity.adopt(admin, former=HOME, **move)
            except WrongCluster:  # the server has yet to see that the worker has gone
                return False
            return True

        async with asyncio.timeout(30):
            while not await is_moved():
                pass
        await cluster_identity.adopt(admin, former=HOME, **move)
