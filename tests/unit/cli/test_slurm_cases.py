"""What a real sbatch did with a script, and what we do: nothing is different in silence."""

from __future__ import annotations

import pytest

from tests.support.slurm_cases import Answer, Case, answer, recorded

RECORDED = recorded()


@pytest.mark.parametrize("case", RECORDED, ids=lambda one: f"{one.group} {one.name}")
def test_a_script_means_the_same_or_its_author_hears_of_it(case: Case) -> None:
    found, words = answer(case)
    assert found is not Answer.SILENT, words
    if found in {Answer.REFUSED, Answer.BOTH_REFUSE}:
        assert "Fix: " in words


def test_most_scripts_that_slurm_accepts_are_accepted() -> None:
    accepted = [answer(one)[0] for one in RECORDED if one.job is not None]
    assert len(accepted) > 540
    assert accepted.count(Answer.EQUAL) >= 455
    assert accepted.count(Answer.REFUSED) <= 95
