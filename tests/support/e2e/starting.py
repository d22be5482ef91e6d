"""What FluxJobs say while they start."""

from __future__ import annotations

from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import until


async def status_of(space: Space, name: str) -> Obj:
    """The status of a FluxJob, empty without one."""
    return (await space.fluxjob(name) or {}).get("status") or {}


async def words_of(space: Space, name: str, *words: str, timeout_s: float = 60) -> Obj:
    """The status of a FluxJob once its reason has all of ``words``."""
    what = f"{name} says {words}"
    return await until(
        lambda: status_of(space, name),
        lambda told: all(word in told.get("reason", "") for word in words),
        what,
        timeout_s=timeout_s,
    )


async def until_silent(space: Space, name: str) -> None:
    """Wait until the FluxJob has no reason any more."""
    await until(
        lambda: status_of(space, name),
        lambda told: told.get("reason") == "",
        f"the reason of {name} is gone",
    )
