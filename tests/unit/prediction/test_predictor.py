"""Plans from ended runs (``fluxqueue.prediction.predictor``)."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.history import RUN_MAX_S, RUNS_MAX, ClassHistory
from fluxqueue.prediction.predictor import ClassKey, Likeness, predict

ALICE = Likeness("train", "alice", "default")
DEFAULT_S = 3600


def of(*seconds: float) -> ClassHistory:
    """Return the history of these runs, the last one the newest."""
    found = ClassHistory()
    for one in seconds:
        found = found.after(one)
    return found


def known(history: ClassHistory, like: Likeness = ALICE) -> dict[ClassKey, ClassHistory]:
    """Return what is known if only the template has runs."""
    return {like.classes[0]: history}


def test_nothing_known_leaves_what_was_declared() -> None:
    """The limit, or the default of the queue."""
    assert predict(ALICE, {}, DEFAULT_S) == Durations(None, DEFAULT_S, DEFAULT_S)
    declared = Likeness("train", "alice", "default", 600)
    assert predict(declared, {}, DEFAULT_S) == Durations(600, 600, 600)


def test_the_most_similar_runs_count_first() -> None:
    """Runs of the template outweigh the other runs of the user and those of newcomers."""
    histories = known(of(60, 60)) | {
        ALICE.known_by: of(9000, 9000, 9000),
        ALICE.newcomers: of(5, 5),
    }
    assert predict(ALICE, histories, DEFAULT_S).typical_s == 60
    other = Likeness("test", "alice", "default")
    assert predict(other, histories, DEFAULT_S).typical_s == 9000
    assert predict(Likeness("x", "bob", "default"), histories, DEFAULT_S).typical_s == 5


def test_few_runs_are_blended_with_the_next_wider_class() -> None:
    """One short run makes the typical time short. The long time is still that of the user."""
    histories = known(of(60)) | {ALICE.known_by: of(*[9000] * 8)}
    assert predict(ALICE, histories, DEFAULT_S) == Durations(None, 60, 9000)


def test_a_tenfold_change_converges_within_three_runs() -> None:
    """In both directions, and for both times of the plan."""
    for old, new in ((100, 1000), (1000, 100)):
        plan = predict(ALICE, known(of(*[old] * 8, *[new] * 3)), new)
        assert plan == Durations(None, new, new)


def test_a_cut_run_is_longer_than_it_was() -> None:
    """Cancelled after an hour: it gives its weight to longer runs, or to the default."""
    cut = of(100, 100, 7200).after(3600, is_cut=True)
    assert predict(ALICE, known(cut), DEFAULT_S).long_s == 7200
    only = ClassHistory().after(5000, is_cut=True)
    assert predict(ALICE, known(only), DEFAULT_S).typical_s == 5000


def test_a_failure_within_seconds_is_no_run_time() -> None:
    """A later failure is one, as the slots were in use until then."""
    failed = of(600, 600).after(2, has_failed=True).after(3, has_failed=True)
    assert predict(ALICE, known(failed), DEFAULT_S).typical_s == 600
    assert predict(ALICE, known(of().after(300, has_failed=True)), 300).typical_s == 300


def test_impossible_run_times_are_bounded() -> None:
    """Negative, zero, a year, no number."""
    found = of(-5, 0, 365 * 86_400, math.nan)
    assert {run.seconds for run in found.runs} == {1, RUN_MAX_S}


def test_a_fresh_name_gets_what_fresh_names_have_used() -> None:
    """Long jobs under new names make the plans of newcomers long."""
    histories: dict[ClassKey, ClassHistory] = {ALICE.newcomers: of(*[30] * 8)}
    for name in range(RUNS_MAX):
        like = Likeness("train", f"alice{name}", "default")
        for key in like.learned_by(is_newcomer=True):
            histories[key] = histories.get(key, ClassHistory()).after(36_000)
    fresh = predict(Likeness("train", "alice9", "default"), histories, DEFAULT_S)
    assert fresh.typical_s == 36_000


@given(st.lists(st.tuples(st.floats(allow_nan=True), st.booleans(), st.booleans())))
def test_the_state_is_bounded(
    runs: list[tuple[float, bool, bool]],
) -> None:
    """Whatever a run time is, the state stays small, and plans stay usable."""
    found = ClassHistory()
    for seconds, is_cut, has_failed in runs:
        found = found.after(seconds, is_cut=is_cut, has_failed=has_failed)
    assert len(found.runs) <= RUNS_MAX
    plan = predict(ALICE, known(found), DEFAULT_S)
    assert 1 <= plan.typical_s <= plan.long_s <= RUN_MAX_S
