"""Mending page by page: what becomes of one that cannot be written, and of its room."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fluxqueue.controller.observing import resync_diff
from fluxqueue.controller.observing.resync_repair import ResyncRepair
from fluxqueue.db.store.rebuild import TakenOver, prepare
from tests.support.rows import Rows
from tests.support.running_rows import run


async def _nothing_to_recall() -> bool:
    return False


async def test_one_that_is_refused_keeps_what_its_pods_use(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also from those of later pages. What it had is taken back before the first."""
    await run(rows, pods=2)
    before = await rows.slots("a")
    its = {("n0", "cpu"): 2}
    told: list[dict[Any, int]] = []

    def compare(_: object, __: object, page: list[str], *___: object) -> resync_diff.Differences:
        if page == ["a"]:
            raise ValueError("no row can hold it")
        return resync_diff.Differences()

    async def write(_: object, __: object, held: dict[Any, int], **___: object) -> TakenOver:
        told.append(dict(held))
        return TakenOver()

    monkeypatch.setattr(resync_diff, "WRITE_PAGE", 1)
    monkeypatch.setattr(resync_diff, "compare", compare)
    monkeypatch.setattr(resync_diff, "write", write)
    suspects = resync_diff.Suspects(found={"a": its, "b": {}}, outdated=["a"])
    sight: Any = SimpleNamespace(of=lambda page: page)
    mending = ResyncRepair(
        rows.database.begin,
        asyncio.Lock(),
        sight,
        suspects,
        lambda *_: pytest.fail("nothing is seen"),
        lambda _: pytest.fail("nothing is gone"),
        lambda *_: None,
        lambda: False,
        _nothing_to_recall,
        rows.database.begin,
    )
    assert mending.is_takeover_in_pages
    async with rows.database.begin() as tx:
        await prepare(tx, ["a"], highest_jobid=1)
    await mending.run()
    assert set(mending.refused) == {"a"}
    assert told == [its]
    assert await rows.slots("a") == before
    await rows.check()
