"""The document of a workload's facts: small, and readable by other releases."""

from __future__ import annotations

import orjson
import pytest

from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.faults import Fault

SOME = WorkloadFacts(
    wanted=3,
    is_sweep=True,
    spare_failures=0,
    depends_on=[{"type": "afterok", "job": "a"}],
    faults=(Fault("InvalidAnnotation", "priority", "is not a number", "0 counts"),),
)


@pytest.mark.parametrize("facts", [WorkloadFacts(), SOME])
def test_a_stored_document_gives_the_same_facts(facts: WorkloadFacts) -> None:
    """As Postgres gives it back."""
    assert WorkloadFacts.of(orjson.loads(orjson.dumps(facts.to_json()))) == facts


def test_a_fact_is_there_only_if_it_has_no_default() -> None:
    """SQL asks for a fact by its key, so no key may stand for ``false``."""
    assert WorkloadFacts(is_sweep=False, ignored=[], said={}, wanted_of={}).to_json() == {}
    assert set(SOME.to_json()) == {"wanted", "is_sweep", "spare_failures", "depends_on", "faults"}


def test_a_fact_of_another_release_is_left_out() -> None:
    """A row may be older than a fact, or newer than this code."""
    assert WorkloadFacts.of({"is_new_here": True, "wanted": 1}).wanted == 1
