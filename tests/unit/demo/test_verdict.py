"""The verdict: a good run has no problems, and each way of going wrong is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.db.reading.figures import FluxJobLine, NodeFigures, RunFigures
from fluxqueue_devtools.demo.ledger import DemoLedger, NodeSeen
from fluxqueue_devtools.demo.manifests import batch_scene, pi_scene, pool_scene
from fluxqueue_devtools.demo.verdict import DemoOutcome, judge
from tests.support.views import running_pod


def line(name: str, state: str) -> FluxJobLine:
    """A FluxJob that ended in ``state``."""
    return FluxJobLine(name, 1, name, state, "", 1, ["pi-1"], 0.5, 2.0)


class Run:
    """What rows and eyes say of the pi scene that went well. Tests change one thing."""

    def __init__(self) -> None:
        """Two after two pods of 8 cores, each for two seconds."""
        self.scene = pi_scene()
        self.lines = [line(one.name, "Completed") for one in self.scene.submissions]
        self.figures = RunFigures({"Completed": 4}, 4.0, 1.0, 0)
        self.nodes = [NodeFigures("pi-1", 16000, 0, 0)]
        self.ledger = DemoLedger()
        for number in range(4):
            self._run_pod(f"pi-{number + 1}", 2.0 * (number // 2))

    def _run_pod(self, name: str, at_s: float) -> None:
        running = running_pod(name, owner=name, node="pi-1")
        running["metadata"]["namespace"] = self.scene.namespace
        ended = {**running, "status": {"phase": "Succeeded"}}
        self._events = [*getattr(self, "_events", []), (at_s + 2.0, 0, running, ended)]
        self._events.append((at_s, 1, None, running))

    def outcome(self) -> DemoOutcome:
        """Judge it. Ends come before starts at the same moment."""
        for at_s, _, old, new in sorted(self._events, key=lambda event: event[:2]):
            self.ledger.take(old, new, at_s)
        return judge(self.scene, self.figures, self.lines, self.nodes, self.ledger, {})


def test_a_good_run_has_no_problems_and_exact_figures() -> None:
    """16 cores in use for the whole makespan are 100%."""
    outcome = Run().outcome()
    assert outcome.problems == ()
    assert str(outcome) == "jobs=4 pods=4 makespan=4.0s utilisation=100% mean_wait=1.00s leaked=0"


@pytest.mark.parametrize(
    ("state", "words"), [("Running", "pi-1 is lost: it must end Completed, and is Running")]
)
def test_a_job_that_did_not_end_is_lost(state: str, words: str) -> None:
    """So is one that the rows do not know at all, or know twice."""
    run = Run()
    run.lines[0] = line("pi-1", state)
    assert words in run.outcome().problems
    run = Run()
    del run.lines[0]
    assert "pi-1 is lost: it must end Completed, and is unknown" in run.outcome().problems
    run = Run()
    run.lines.append(line("pi-1", "Completed"))
    assert any(problem.startswith("pi-1 is lost") for problem in run.outcome().problems)


def test_three_at_once_are_one_too_many() -> None:
    """Seen on the node, whatever the rows say."""
    run = Run()
    run._run_pod("pi-5", 0.0)
    problems = run.outcome().problems
    assert "at most 3 pods were on a node at once; it must be 2" in problems
    assert "pi-1 was seen with 24 cores in use of 16" in problems


def test_a_leak_is_a_problem_in_slots_and_in_cores() -> None:
    """Slots of ended FluxJobs, and cores that no FluxJob accounts for."""
    run = Run()
    run.figures = replace(run.figures, leaked_slots=2)
    outcome = run.outcome()
    assert outcome.leaked == 2
    assert "2 slots leaked, 0 cores not returned" in outcome.problems
    run = Run()
    run.nodes = [NodeFigures("pi-1", 16000, 8000, 0)]
    assert "0 slots leaked, 8 cores not returned" in run.outcome().problems


def test_an_impossible_job_must_be_told_soon() -> None:
    """Five seconds is late on any machine."""
    scene = batch_scene(2, 1)
    told = {"impossible": 7.0}
    figures = RunFigures({}, 0.0, 0.0, 0)
    problems = judge(scene, figures, [], [], DemoLedger(), told).problems
    assert "impossible was called impossible only after 7.0 s" in problems


def test_nodes_must_come_and_go() -> None:
    """Each new node of the scene, and the job must have said that it waits for them."""
    scene = pool_scene()
    lines = [line("train", "Completed")]
    figures = RunFigures({"Completed": 1}, 6.0, 4.0, 0)
    ledger = DemoLedger()
    for number in range(4):
        running = running_pod(f"train-{number}", owner="train", node=f"gpu-{number + 1}")
        running["metadata"]["namespace"] = scene.namespace
        ledger.take(None, running, 4.0)
        ledger.take(running, {**running, "status": {"phase": "Succeeded"}}, 6.0)
    seen = {name: NodeSeen(16000, 3.0, 9.0) for name in scene.new_nodes}

    def problems(seen: dict[str, NodeSeen], coming: list[str]) -> tuple[str, ...]:
        return judge(scene, figures, lines, [], ledger, {}, seen, coming).problems

    assert problems(seen, ["train"]) == ()
    assert problems(seen, []) == ("train was never seen to wait for nodes",)
    stays = seen | {"gpu-2": NodeSeen(16000, 3.0)}
    assert problems(stays, ["train"]) == ("node gpu-2 is still there",)
    del stays["gpu-4"]
    assert "node gpu-4 never came" in problems(stays, ["train"])
