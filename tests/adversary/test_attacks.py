"""While a tenant does their worst, Jobs of another one are admitted and released in time.

Beside the probes each attack is judged by its answers (a refusal is in words: no 500, no failed
webhook) and by the logs of the parts, which may hold no traceback.
"""

from __future__ import annotations

import os

import pytest

from tests.adversary.attacks import ATTACKS
from tests.adversary.logs import Logs
from tests.adversary.probing import Probing
from tests.adversary.tenants import Tenant

SIZE_VARIABLE = "FLUXQUEUE_ADVERSARY_SIZE"
SIZE = float(os.environ.get(SIZE_VARIABLE) or 0.02)
"""``make adversary`` runs each attack at its full size."""
QUICK = frozenset({"moldable-jobspecs", "untyped-reviews", "chains-and-circles", "spec-changes"})
"""One attack of each kind. All others are long tests: together they take three minutes."""
AFTERWARDS = 2
"""Probes after an attack: what it stored is decided about then."""


async def _run(victim: Tenant, mallory: Tenant, attack: str, size: float) -> None:
    logs = Logs(victim.space.world)
    async with Probing(victim, attack) as probing:
        await ATTACKS[attack](mallory, size)
        await probing.until(AFTERWARDS)
    probing.assert_on_time()
    assert mallory.answers, "the attack has done nothing"
    assert not mallory.faults, "\n".join(mallory.faults[:5])
    assert not logs.tracebacks(), logs.tracebacks()[:3000]


def _marked(attack: str) -> object:
    long = pytest.mark.long("another attack of its kind is in `make test`")
    return pytest.param(attack, marks=() if attack in QUICK else long)


@pytest.mark.cases_long("the other attacks")
@pytest.mark.parametrize("attack", [_marked(attack) for attack in ATTACKS])
async def test_others_go_on(victim: Tenant, mallory: Tenant, attack: str) -> None:
    await _run(victim, mallory, attack, SIZE)
