"""``fluxqueue explain`` in words, and its exit codes. docs/user/explain.md shows shorter ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.cli.user.explain import _amounts, exit_code, read_file, tell
from fluxqueue.client.explanation import changes_of
from fluxqueue.errors import InvalidInput
from fluxqueue.explain.answer import Place
from fluxqueue.explain.question import Question, QueueSnapshot
from fluxqueue.explain.review import answer
from fluxqueue.explain.review_status import Named, render_answer
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY, PODS, NodeRequirement, Operator
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Constraint, Jobspec, NodeDemand
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS
from fluxqueue.jobspec.shape import equal_slots, within
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.pending_job import PendingJob

NOW = 1_896_098_400
GI = 1 << 30
SELECTOR = NodeRequirement("pool", Operator.IN, ("main",))
MAIN = NodeDemand(Constraint(MATCH_EXPRESSIONS, requirements=(SELECTOR,)))


def _request(count: int, cpu: int) -> Jobspec:
    needs = {CPU: cpu * 1000, MEMORY: GI, PODS: 1}
    return replace(equal_slots(count, needs, duration_s=7200), where=MAIN)


def _status() -> dict[str, Any]:
    """Two racks of the pool that it may use. In one of them another namespace's jobs run."""
    matcher = Matcher(ShareLedger(), "lonode")
    for number in range(16):
        labels = {
            "pool": "main" if number < 8 else "other",
            "topology.kubernetes.io/rack": f"r{number // 4}",
        }
        capacity = {CPU: 16_000, MEMORY: 64 * GI, PODS: 110}
        matcher.set_node(NodeFact(f"node-{number}", f"uid-{number}", capacity, labels), {})
    for name, count, cpu, left_s in (
        ("eval", 4, 12, 720),
        ("others", 2, 13, 490),
        ("tune", 1, 13, 490),
    ):
        for number in range(count):
            placed = matcher.match_now(_request(1, cpu), NOW)
            matcher.allocate(f"{name}-{number}", replace(placed, until=NOW + left_s))
    queue = [PendingJob("train", 17, 0, within(_request(12, 4), "rack"))]
    decisions = run_cycle(matcher, queue, POLICIES["easy"], NOW)
    promised = {one.uid: placement for one, placement in decisions.reserved}
    scene = QueueSnapshot(matcher, queue, decisions, POLICIES["easy"], Queues(), NOW, {}, promised)
    found = answer(scene, Question(queue[0], place=Place("default", 0, 1, 12)))
    names = {"tune-0": Named(12, "ml", "tune")}
    return render_answer(found, names, NOW, known={"jobid": 17, "state": "Reserved"})


PRINTED = """\
train (job 17): later, 2030-01-31T14:08:10Z (in 8m) at the latest
  asks for 12 slots of 4 cpu, 1Gi memory, in one rack
  8 free slots of 4 cpu, 1Gi memory; 12 are needed
  on node-[4-6]
  number 1 of 12 in queue default, priority 0

NODES WITH                     IN ALL   NOW
ready and not cordoned         16       16
taints tolerated               16       16
pool=main                      8        8
not held whole by others       16       16
4 cpu                          16       13
1Gi memory                     16       16
one more pod fits              16       16
all of these                   8        5
slots that fit, of 12 needed   32       8

LEVEL   NEEDED   OF   COULD   CAN NOW   EACH WITH
rack    1        4    2       0         12 slots of 4 cpu, 1Gi memory

IN THE WAY                JOBID   NAMESPACE   STATE     NODES   UNTIL
another namespace's job   -       -           running   1       2030-01-31T14:08:10Z
another namespace's job   -       -           running   1       2030-01-31T14:08:10Z
tune                      12      ml          running   1       2030-01-31T14:08:10Z

EARLIER                     START
with 4 pods instead of 12   now
without pool=main           now
"""


def test_all_that_an_answer_says_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"status": _status()}, "table", "train")
    assert capsys.readouterr().out == PRINTED


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ({"verdict": "Now", "reason": "Fits"}, 0),
        ({"verdict": "Later", "reason": "NodesBusy"}, 3),
        ({"verdict": "Never", "reason": "Unsatisfiable"}, 4),
        ({"reason": "Invalid"}, 2),
        ({"reason": "NotFound"}, 2),
        ({"reason": "TooMany"}, 1),
    ],
)
def test_exit_codes(status: dict[str, str], code: int) -> None:
    assert exit_code({"status": status}) == code


def test_why_there_is_no_answer_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tell({"status": {"reason": "TooMany", "message": "try again in 3 s"}}, "table", "train")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "fluxqueue: try again in 3 s\n")


def test_files_of_each_sort(tmp_path: Path) -> None:
    """A manifest among other documents, a jobspec or its resources, a script."""
    file = tmp_path / "file"
    file.write_text("kind: ConfigMap\n---\napiVersion: batch/v1\nkind: Job\n")
    assert read_file(str(file)) == {"manifest": {"apiVersion": "batch/v1", "kind": "Job"}}
    file.write_text("- {type: slot, count: 1}\n")
    assert read_file(str(file)) == {"jobspec": {"resources": [{"type": "slot", "count": 1}]}}
    file.write_text("#!/bin/sh\n#SBATCH -n 4 -c 2\ntrue\n")
    (container,) = read_file(str(file))["manifest"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "8"}
    for text, words in (("kind: Service", "contains no Job"), ("a: [", "neither YAML nor JSON")):
        file.write_text(text)
        with pytest.raises(InvalidInput, match=words):
            read_file(str(file))
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_file(str(tmp_path / "none"))


def test_changes_are_those_that_are_said() -> None:
    """An empty level is anywhere, 0 no limit. What is not said is not sent."""
    assert changes_of(time="", queue="", requests=_amounts([])) == {}
    assert changes_of(
        size=4, time="0", queue="gold", priority=0, within="", requests=_amounts(["cpu=4"])
    ) == {
        "size": 4,
        "durationSeconds": 0,
        "queue": "gold",
        "priority": 0,
        "within": "",
        "requests": {"cpu": "4"},
    }
    with pytest.raises(InvalidInput, match="needs an amount"):
        _amounts(["cpu"])
