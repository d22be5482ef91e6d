"""No edit, omission, grace, retry, growth or hold of a tenant breaks the promise to another one.

Only an operator, who may raise limits, can break it, and history says so.
"""

from __future__ import annotations

import pytest

from fluxqueue.jobspec import Jobspec
from tests.support import greedy_lives
from tests.support.greedy_lives import broken_promises

LIVES = 1_000


def judge(lives: int) -> tuple[int, dict[int, list[str]]]:
    """Return how many promises were kept, and those broken in each life."""
    found = {seed: broken_promises(seed) for seed in range(lives)}
    kept = sum(kept for kept, _ in found.values())
    return kept, {seed: broken for seed, (_, broken) in found.items() if broken}


def test_a_hundred_lives_with_a_greedy_tenant() -> None:
    kept, broken = judge(LIVES // 10)
    assert broken == {}
    assert kept > LIVES // 50, "these lives promise too little to judge"


@pytest.mark.long("the whole figure: a thousand lives")
def test_a_thousand_lives_with_a_greedy_tenant() -> None:
    assert judge(LIVES)[1] == {}


def test_the_lives_find_a_grace_that_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jobspec, "held_s", property(lambda self: int(self.duration_s)))
    assert judge(LIVES // 10)[1] != {}


def test_the_lives_find_a_limit_that_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed job that keeps its slots, as one without a limit may."""
    real = greedy_lives.workload
    monkeypatch.setattr(
        greedy_lives, "workload", lambda uid, **more: real(uid, **more | {"is_limited": False})
    )
    assert judge(LIVES // 10)[1] != {}
