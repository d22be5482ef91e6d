"""Reviews of small clusters: each reason, what would help, and what the status says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxqueue.explain.answer import Answer, Certainty, Change, PlacementVerdict, Reason
from fluxqueue.explain.question import NEWCOMER, Keeper, Question, QueueSnapshot
from fluxqueue.explain.review import answer
from fluxqueue.explain.review_status import HIDDEN, Named, render_answer, render_refusal
from fluxqueue.explain.variants import span
from fluxqueue.fluxjob.exclusive_use import claim_use, port_use
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, NodeRequirement, Operator
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import Learn, Limits, QueueRules
from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.predictor import Likeness
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.pending_job import LearnedPlan, PendingJob

CRD = Path(__file__).parents[3] / "chart" / "crds" / "placementreviews.yaml"
ZONE = "topology.kubernetes.io/zone"
NOW = 1000


def slots(count: int, cpu: int, duration_s: int | None = 100) -> Jobspec:
    return equal_slots(count, {CPU: cpu * 1000}, duration_s=duration_s)


def on(node: str, asked: Jobspec) -> Jobspec:
    """On one node by its label."""
    where = NodeRequirement("node", Operator.IN, (node,))
    return replace(asked, where=NodeDemand(Constraint(MATCH_EXPRESSIONS, requirements=(where,))))


def job(name: str, asked: Jobspec, *, jobid: int = NEWCOMER, **more: Any) -> PendingJob:
    return PendingJob(name, jobid, more.pop("priority", 0), asked, **more)


def cluster(cores: Mapping[str, int], runs: Mapping[str, tuple[int, int]]) -> Matcher:
    """Nodes of so many cores. On some of them something runs: cores, and until when."""
    matcher = Matcher(ShareLedger(), "lonode")
    for number, (name, size) in enumerate(cores.items()):
        labels = {"node": name, ZONE: "ab"[number % 2]}
        matcher.set_node(NodeFact(name, f"uid-{name}", {CPU: size * 1000}, labels), {})
    for node, (size, until) in runs.items():
        placed = matcher.match_now(on(node, slots(1, size)), NOW)
        matcher.allocate(f"on-{node}", replace(placed, until=until))
    return matcher


def scene(
    matcher: Matcher,
    *queue: PendingJob,
    policy: str = "easy",
    rules: Mapping[str, QueueRules] | None = None,
    use: Mapping[tuple[str, str], Amounts] | None = None,
) -> QueueSnapshot:
    """After a cycle that started nothing."""
    queues = Queues(rules or {}, dict(use or {}))
    decisions = run_cycle(matcher, queue, POLICIES[policy], NOW, queues)
    assert not decisions.allocated
    promised = {one.uid: where for one, where in decisions.reserved}
    return QueueSnapshot(matcher, queue, decisions, POLICIES[policy], queues, NOW, {}, promised)


def texts(found: Answer) -> dict[str, PlacementVerdict]:
    return {one.change.text: one.outcome.verdict for one in found.variants}


def test_a_promise_behind_it_may_move_to_other_nodes() -> None:
    """It takes what was promised on n0. Who was promised that starts as early on n1."""
    matcher = cluster({"n0": 4, "n1": 4}, {"n0": (3, NOW + 100), "n1": (3, NOW + 100)})
    made = scene(matcher, job("head", slots(1, 4), jobid=1))
    (where,) = made.promised.values()
    first = job("first", on(where.nodes[0], slots(1, 1, 500)), priority=9)
    found = answer(made, Question(first)).outcome
    assert (found.verdict, found.nodes) == (PlacementVerdict.NOW, where.nodes)
    last = replace(first, priority=0)
    assert answer(made, Question(last)).outcome.verdict is PlacementVerdict.LATER


def test_who_runs_and_who_is_before_it_are_in_the_way() -> None:
    """Running work until its end, then what is planned there before it."""
    matcher = cluster({"n0": 4}, {"n0": (4, NOW + 50)})
    made = scene(matcher, job("head", slots(1, 4), jobid=1))
    found = answer(made, Question(job("new", slots(1, 4)))).outcome
    assert (found.starts_at, found.certainty) == (NOW + 150, Certainty.ESTIMATED)
    assert [(one.uid, one.is_running, one.until) for one in found.blockers] == [
        ("on-n0", True, NOW + 50),
        ("head", False, NOW + 150),
    ]
    assert found.message == "0 free slots of 4 cpu; 1 is needed"
    head = answer(made, Question(made.queue[0])).outcome
    assert (head.starts_at, head.certainty) == (NOW + 50, Certainty.PROMISED)


def test_plans_of_others_are_not_told() -> None:
    """A blocker has the end that its limit gives it, and none if that is only predicted."""
    matcher = cluster({"n0": 4}, {})
    placed = matcher.match_now(slots(1, 4), NOW)
    matcher.allocate("runs", replace(placed, until=NOW + 60, ends_by=NOW + 500))
    ahead = job("ahead", slots(1, 4), jobid=1)
    plan = LearnedPlan.of(ahead.request, Durations(100, 20, 30))
    for learned, until in ((None, NOW + 600), (plan, None)):
        before = replace(ahead, learned=learned)
        found = answer(scene(matcher, before), Question(job("mine", slots(1, 4)))).outcome
        ends = {one.uid: one.until for one in found.blockers}
        assert ends == {"runs": NOW + 500, "ahead": until}


def test_a_request_that_is_not_submitted_is_planned_as_its_like() -> None:
    """By the runs of its owner, within its limit. A queue can turn that off."""
    seen = scene(cluster({"n0": 4}, {}), rules={"default": QueueRules("default", learn=Learn.ON)})
    for _ in range(8):
        seen.times.learn(Likeness("t", "ada", "default"), 40)
    stated = job("mine", slots(1, 4))
    silent = replace(stated, is_planned=True, has_limit=False)
    for asked, limit_s in ((stated, 100), (silent, None)):
        found = seen.with_plan(asked, "t", "ada")
        assert found.learned is not None
        assert found.learned.durations == Durations(limit_s, 40, 40)
        assert found.stated == asked.stated
        assert seen.with_plan(asked, "t", "bob").learned != found.learned
    off = {"default": QueueRules("default", learn=Learn.OFF)}
    assert replace(seen, queues=Queues(off)).with_plan(stated, "t", "ada") == stated


def test_a_variant_of_a_learned_job_is_planned_as_what_it_is() -> None:
    """With fewer pods it has the plan of the job, and not the pods of the job."""
    matcher = cluster({"n0": 4, "n1": 4}, {"n0": (4, NOW + 500)})
    asked = job("mine", slots(2, 4))
    asked = replace(asked, learned=LearnedPlan.of(asked.request, Durations(100, 20, 30)))
    found = texts(answer(scene(matcher), Question(asked)))
    assert found["with 1 pod instead of 2"] is PlacementVerdict.NOW


def test_no_known_end() -> None:
    """What it waits for cannot be read: later, and no plan says when."""
    made = scene(cluster({"n0": 4}, {"n0": (4, FOREVER)}))
    found = answer(made, Question(job("new", slots(1, 4)))).outcome
    assert (found.verdict, found.starts_at, found.certainty) == (PlacementVerdict.LATER, None, None)
    assert "no plan says when" in found.message


def test_ports_and_claims_of_other_pods() -> None:
    """A port is no reason for never. A claim in use is named, and has no start that is known."""
    needs = {CPU: 1000, **port_use([("TCP", 80, "0.0.0.0")])}
    matcher = cluster({"n0": 4}, {})
    asked = equal_slots(1, needs, duration_s=100)
    matcher.allocate("x", replace(matcher.match_now(asked, NOW), until=NOW + 50))
    found = answer(scene(matcher), Question(job("new", asked))).outcome
    assert (found.verdict, found.reason) == (PlacementVerdict.LATER, Reason.BUSY)
    assert found.starts_at == NOW + 50
    assert "host port 80/TCP" in found.message

    claiming = equal_slots(1, {CPU: 1000, claim_use("ns", "data"): 1}, duration_s=100)
    matcher.allocate("y", matcher.match_now(claiming, NOW))
    found = answer(scene(matcher), Question(job("new", claiming))).outcome
    assert (found.verdict, found.reason) == (PlacementVerdict.LATER, Reason.CLAIM_IN_USE)
    assert (found.starts_at, "volume claim data" in found.message) == (None, True)


def test_limits_and_stopped_queues_and_the_way_round_them() -> None:
    """Over a limit, in a queue that stands still or that does not take it: another queue helps."""
    rules = {
        "default": QueueRules("default"),
        "narrow": QueueRules("narrow", per_user=Limits(jobs=1)),
        "still": QueueRules("still", is_started=False),
        "closed": QueueRules("closed", is_enabled=False),
    }
    use = {("narrow", "ada"): Amounts(1, 1, 1000)}
    made = scene(cluster({"n0": 4}, {}), rules=rules, use=use)
    for queue, verdict, reason in (
        ("narrow", PlacementVerdict.LATER, Reason.OVER_LIMIT),
        ("still", PlacementVerdict.LATER, Reason.STOPPED),
        ("closed", PlacementVerdict.NEVER, Reason.REFUSED_BY_QUEUE),
        ("nowhere", PlacementVerdict.NEVER, Reason.REFUSED_BY_QUEUE),
    ):
        asked = job("new", slots(1, 1), queue=queue, user="ada")
        found = answer(made, Question(asked))
        assert (found.outcome.verdict, found.outcome.reason) == (verdict, reason), found
        assert texts(found)["in queue default"] is PlacementVerdict.NOW
    free = job("new", slots(1, 1), queue="narrow", user="bob")
    assert answer(made, Question(free)).outcome.verdict is PlacementVerdict.NOW


def test_a_queue_without_backfill_lets_nobody_overtake() -> None:
    """Enough is free for it, and it waits for those before it."""
    matcher = cluster({"n0": 4}, {"n0": (2, NOW + 50)})
    made = scene(matcher, job("head", slots(1, 4), jobid=1), policy="fcfs")
    found = answer(made, Question(job("new", slots(1, 1))))
    assert (found.outcome.verdict, found.outcome.reason) == (PlacementVerdict.LATER, Reason.BEHIND)
    assert not any(verdict is PlacementVerdict.NOW for verdict in texts(found).values())


def test_a_cycle_looks_so_far_only() -> None:
    """Behind the depth of its queue nothing starts, whatever it asks for."""
    rules = {"default": QueueRules("default", queue_depth=1)}
    matcher = cluster({"n0": 4}, {"n0": (2, NOW + 50)})
    made = scene(matcher, job("head", slots(1, 4), jobid=1), rules=rules)
    found = answer(made, Question(job("new", slots(1, 1))))
    assert found.outcome.reason is Reason.BEHIND
    assert "1 jobs are ahead" in found.outcome.message
    assert found.place is not None
    assert (found.place.position, found.place.waiting) == (2, 2)
    assert not any(verdict is PlacementVerdict.NOW for verdict in texts(found).values())


def test_variants_of_each_sort() -> None:
    """Fewer pods, less of a resource, not in one place, without a constraint."""
    made = scene(cluster({"n0": 4, "n1": 4, "n2": 4}, {"n0": (2, NOW + 500)}))
    assert texts(answer(made, Question(job("new", slots(3, 4))))) == {
        "with 2 pods instead of 3": PlacementVerdict.NOW,
        "with 2 cpu for each pod instead of 4": PlacementVerdict.NOW,
    }
    zone = replace(slots(2, 4), resources=(Resource("zone", Count(1, 1), slots(2, 4).resources),))
    assert (
        texts(answer(made, Question(job("new", zone))))["not all within one zone"]
        is PlacementVerdict.NOW
    )
    pinned = on("n0", slots(1, 4))
    assert (
        texts(answer(made, Question(job("new", pinned))))["without node=n0"] is PlacementVerdict.NOW
    )
    never = answer(made, Question(job("new", slots(1, 5))))
    assert never.outcome.reason is Reason.UNSATISFIABLE
    assert texts(never)["with 4 cpu for each pod instead of 5"] is PlacementVerdict.NOW
    whole = replace(slots(10, 1), is_node_exclusive=True)
    shared = texts(answer(made, Question(job("new", whole))))
    assert shared["on nodes shared with other jobs"] is PlacementVerdict.NOW


def test_a_shorter_run_is_over_before_a_promise() -> None:
    """To the minute."""
    matcher = cluster({"n0": 4}, {"n0": (2, NOW + 630)})
    made = scene(matcher, job("head", slots(1, 4), jobid=1))
    found = answer(made, Question(job("new", slots(1, 1, None))))
    assert texts(found) == {"with a duration of 10m instead of no limit": PlacementVerdict.NOW}


def test_what_is_held_says_what_comes_of_its_release() -> None:
    keeper = Keeper(Reason.HELD, "held by ada", Change("hold", "false", "if it is released"))
    made = scene(cluster({"n0": 4}, {}))
    found = answer(made, Question(job("new", slots(1, 4)), keeper=keeper))
    assert (found.outcome.verdict, found.outcome.reason) == (PlacementVerdict.LATER, Reason.HELD)
    assert found.outcome.starts_at is None
    assert texts(found) == {"if it is released": PlacementVerdict.NOW}
    begins = replace(keeper, reason=Reason.BEGIN_TIME, not_before=NOW + 60)
    later = answer(made, Question(job("new", slots(1, 4)), keeper=begins)).outcome
    assert (later.starts_at, later.certainty) == (NOW + 60, Certainty.AT_BEST)


@pytest.mark.parametrize(
    ("seconds", "text"), [(90, "90s"), (600, "10m"), (9000, "2h30m"), (93_600, "1d2h")]
)
def test_spans_are_written_as_durations_are_read(seconds: int, text: str) -> None:
    assert span(seconds) == text


# --- the status ----------------------------------------------------------------------------------


def _unknown(value: Any, schema: Mapping[str, Any], path: str = "status") -> Iterator[str]:
    """Fields that the definition does not have, which an API server drops. Values it refuses."""
    if isinstance(value, list):
        assert len(value) <= schema["maxItems"], path
        for one in value:
            yield from _unknown(one, schema["items"], path)
    elif isinstance(value, dict):
        for name, below in value.items():
            known = schema["properties"].get(name)
            if known is None:
                yield f"{path}.{name}"
            else:
                yield from _unknown(below, known, f"{path}.{name}")
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{path} = {value}"
    elif not isinstance(value, {"string": str, "integer": int}[schema["type"]]):
        yield f"{path}: {value!r} is no {schema['type']}"


def _schema() -> Mapping[str, Any]:
    definition = yaml.safe_load(CRD.read_text(encoding="utf-8"))
    (version,) = definition["spec"]["versions"]
    found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    return found


def test_every_field_of_a_status_is_defined() -> None:
    """Of an answer with everything in it, and of a refusal."""
    matcher = cluster({"n0": 4, "n1": 4}, {"n0": (4, NOW + 50), "n1": (4, FOREVER)})
    made = scene(matcher, job("head", slots(1, 4), jobid=1))
    zone = replace(slots(1, 4), resources=(Resource("zone", Count(1, 1), slots(1, 4).resources),))
    found = answer(made, Question(job("new", zone)))
    status = render_answer(found, {}, NOW, known={"jobid": 3, "state": "Pending"})
    assert {"kinds", "levels", "blockers", "variants", "queue"} <= status.keys() | {"variants"}
    assert list(_unknown(status, _schema())) == []
    refusal = render_refusal("TooMany", "later", NOW, retryAfterSeconds=3)
    assert list(_unknown(refusal, _schema())) == []
    for one in (*PlacementVerdict, *Certainty):
        enums = _schema()["properties"]
        assert one in enums["verdict"]["enum"] or one in enums["certainty"]["enum"]
    for reason in Reason:
        assert reason.value in _schema()["properties"]["reason"]["description"]


def test_only_those_are_named_who_have_a_name_for_the_asker() -> None:
    """Neither name nor number nor namespace of the others stands anywhere in the status."""
    matcher = cluster({"n0": 4, "n1": 4}, {"n0": (4, NOW + 50), "n1": (4, NOW + 60)})
    made = scene(matcher)
    found = answer(made, Question(job("new", slots(2, 4))))
    names = {"on-n0": Named(7, "mine", "train")}
    status = render_answer(found, names, NOW)
    mine, other = sorted(status["blockers"], key=lambda one: one["name"] == HIDDEN)
    assert (mine["name"], mine["namespace"], mine["jobid"]) == ("train", "mine", 7)
    assert set(other) == {"name", "state", "nodes", "until"}
    assert other["name"] == HIDDEN
    assert "on-n1" not in str(status)
