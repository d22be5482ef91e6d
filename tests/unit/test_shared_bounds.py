"""Every bound of the tree: what fills it, and what one greedy tenant leaves to a modest one.

A "first N" is shared by all tenants, so one of them could fill it. A new bound fails here until it
has an entry: either it counts within one thing (a text, a job, a user, an object), or a check shows
what another tenant still gets. The check is a function here, or a test elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.fluxjob.request import CPU
from fluxqueue.fluxjob.turns import first_in_turn
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.prediction import learned_times
from fluxqueue.prediction.learned_times import LearnedTimes
from fluxqueue.prediction.predictor import Likeness
from fluxqueue.scheduler import node_choices, sweeps
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Ongoing
from fluxqueue.scheduler.growing_walk import GrowingWalk
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.queue_line import QueueLine
from fluxqueue.view.rights import Remembered
from fluxqueue.workload import learned_sizes
from fluxqueue.workload.learned_sizes import LearnedSizes
from tests.support.pool_model import node, placement, request
from tests.support.workloads import batch_job

ROOT = Path(__file__).parents[2]
SERVERS = ("fluxqueue", "webhook/fluxqueue_webhook")
AT_THE_USER = {"cli", "client", "demo", "localpg", "simulation", "checking"}
"""Packages that run for one user, with that user's rights."""
BOUND = re.compile(r"_?([A-Z_]+_MAX|OF_EACH|OF_ALL|AT_ONCE|THREADS|FRONT|ALL_USERS|[A-Z_]+_EACH)")
LIMIT = re.compile(r"LIMIT (:\w+|\d+|coalesce\([^)]*\))")


def _a_cluster() -> Matcher:
    matcher = Matcher(ShareLedger(()), "pack")
    for number in range(8):
        matcher.set_node(node(f"n{number}", cpu=2000), {})
    return matcher


def _choices() -> None:
    matcher, one, many = _a_cluster(), request(cpu=1), node_choices.JOBS_MAX * 2
    users = [*["greedy"] * many, "modest"]
    started = [
        (PendingJob(f"{user}-{n}", n, 0, one, user=user, is_unsure=True), matcher.match_now(one, 0))
        for n, user in enumerate(users)
    ]
    found = node_choices.give_choices(matcher, Decisions(allocated=started), 0)
    assert f"modest-{many}" in found
    assert len(found) == node_choices.JOBS_MAX


def _a_sweep(number: int, user: str) -> Lack:
    asked, uid = request(cpu=1500), f"{user}-{number}"
    return Lack(uid, 1, asked, ("n0",), None, user=user, jobid=number, is_independent=True)


def _sweeps() -> None:
    many = [_a_sweep(n, "greedy") for n in range(sweeps.GROWING_MAX + 50)]
    many.append(_a_sweep(9999, "modest"))
    matcher = _a_cluster()
    for one in many:
        matcher.allocate(one.uid, placement(("n0", {CPU: 0}), until=10**6))
    decisions = run_cycle(matcher, [], queue_policy("easy"), 0, ongoing=Ongoing(lacks=many))
    seen = {lack.uid for lack, _ in decisions.grown.slots} | decisions.grown.barred.keys()
    assert "modest-9999" in seen


def _planned_sweeps() -> None:
    """The next slot of a sweep of another user is kept free, too."""
    matcher = _a_cluster()
    for number in range(8):
        matcher.allocate(f"r{number}", placement((f"n{number}", {CPU: 2000}), until=50))
    many = [*(_a_sweep(n, "greedy") for n in range(40)), _a_sweep(99, "modest")]
    planned: list[str] = []
    usual = GrowingWalk._plan_growth

    def plan(self: GrowingWalk, line: QueueLine, lack: Lack) -> None:
        before = line.growth_planned[lack.user]
        usual(self, line, lack)
        planned.extend([lack.user] * (line.growth_planned[lack.user] - before))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GrowingWalk, "_plan_growth", plan)
        patch.setattr(GrowingWalk, "_note_hopeless", lambda *_: None)
        run_cycle(matcher, [], queue_policy("easy"), 0, ongoing=Ongoing(lacks=many))
    assert planned.count("modest") == 1
    assert planned.count("greedy") == sweeps.PLANNED_EACH


def _run_times() -> None:
    """A tenant with many templates pushes out its own run times, and not those of others."""
    times = LearnedTimes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned_times, "OF_OWNER_MAX", 10)
        for number, owner in enumerate(["modest", *["greedy"] * 90]):
            times.learn(Likeness(f"t{number}", owner, "default"), 60)
    kept = [key[2] for key in times._histories if key[0] == "template"]
    assert (kept.count("modest"), kept.count("greedy")) == (1, 9)


def _learned() -> None:
    """A tenant with many templates pushes out its own, and not those of others."""
    sizes = LearnedSizes()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(learned_sizes, "TEMPLATES_MAX", 50)
        patch.setattr(learned_sizes, "OF_NAMESPACE_MAX", 10)
        patch.setattr(learned_sizes, "_teaches", lambda _: True)
        for number, namespace in enumerate(["modest", *["greedy"] * 90]):
            job = batch_job(annotations={})
            job["metadata"]["namespace"] = namespace
            job["spec"]["template"]["spec"]["containers"][0]["image"] = f"i{number}"
            taught = {"creationTimestamp": "2026-11-01T00:00:00Z"}
            pod = {"metadata": taught, "status": {learned_sizes.USES: (("memory", 10**12),)}}
            sizes.learn(job, [pod])
    kept = [namespace for namespace, _ in sizes._known]
    assert (kept.count("modest"), kept.count("greedy")) == (1, 10)


async def _rights() -> None:
    """An answer that was pushed out is asked for again."""
    answers: Remembered[int] = Remembered(10, ManualClock())

    async def ask() -> int:
        return 7

    for number in range(99):
        await answers.get(number, ask)
    assert await answers.get(0, ask) == 7


def _turns() -> None:
    many = [*(("greedy", n) for n in range(5000)), ("modest", 0)]
    assert ("modest", 0) in first_in_turn(many, lambda one: one[0], 1000)


PROVISIONING = "tests/unit/nodepools/test_wait_or_buy.py"
CROWDS = "tests/integration/worker/test_full_queues.py"
PLACES = "tests/integration/test_view_places.py"
FAIR_QUEUE = "tests/unit/webhook/test_fair_queue.py"
CALIBRATION = "tests/unit/prediction/test_calibration.py"
LARGE_BODIES = "tests/unit/webhook/test_large_bodies.py"
TURNS = "tests/unit/test_turns.py"
Check = Callable[[], object] | str

SHARED: dict[str, tuple[str, Check]] = {
    # bound: (what fills it, what another tenant still gets)
    "nodepools/plan/provisioning.py:JOBS_MAX": (
        "jobs that want new nodes",
        f"{PROVISIONING}::test_jobs_for_a_full_pool_hide_no_job_for_another",
    ),
    "scheduler/node_choices.py:JOBS_MAX": ("jobs that a matcher cannot judge", _choices),
    "scheduler/sweeps.py:GROWING_MAX": ("growing jobs", _sweeps),
    "scheduler/sweeps.py:PLANNED_MAX": ("sweeps that wait for a slot", _planned_sweeps),
    "scheduler/sweeps.py:PLANNED_EACH": ("the same, of one user", _planned_sweeps),
    "scheduler/preemption_plan.py:PER_CYCLE_MAX": (
        "preemptors, of which the first are in order. A cycle follows at once",
        "tests/property/test_preemption.py",
    ),
    "process/pacing.py:EXAMINED_MAX": (
        "new jobs",
        f"{CROWDS}::test_new_jobs_of_one_user_hide_no_new_job_of_another",
    ),
    "process/pacing.py:BATCH_MAX": ("observed changes", TURNS),
    "db/store/queue_snapshot.py:OF_EACH": ("jobs", CROWDS),
    "db/store/queue_snapshot.py:OF_ALL": ("users", CROWDS),
    "worker/intake.py:ROUNDS_MAX": (
        "users at a limit in the head of a queue",
        CROWDS,
    ),
    "controller/observing/fluxjob_creator.py:AT_ONCE": (
        "new workloads",
        TURNS,
    ),
    "controller/observing/quarantine.py:SHOWN_MAX": ("unreadable objects", _turns),
    "controller/reviews.py:ALL_USERS": ("questions", "tests/unit/controller/test_reviews.py"),
    "workload/learned_sizes.py:TEMPLATES_MAX": ("templates", _learned),
    "workload/learned_sizes.py:OF_NAMESPACE_MAX": ("templates of a namespace", _learned),
    "prediction/learned_times.py:OF_OWNER_MAX": ("templates of a user", _run_times),
    "graph/ledger/share_table.py:PORTS_MAX": (
        "host ports. kube-scheduler decides on all further ones",
        "tests/unit/graph/test_host_ports.py",
    ),
    "view/http_server.py:AT_ONCE_MAX": ("requests", PLACES),
    "view/http_server.py:OF_USER_MAX": ("requests of a user", PLACES),
    "view/http_server.py:UNKNOWN_MAX": ("unknown tokens", PLACES),
    "view/http_server.py:OF_ADDRESS_MAX": ("the same", PLACES),
    "view/change_stream.py:FOLLOWERS_MAX": (
        "streams",
        "tests/integration/test_view.py::test_one_user_cannot_take_all_streams",
    ),
    "view/change_stream.py:FOLLOWERS_EACH": (
        "streams of a user",
        "tests/integration/test_view.py::test_one_user_cannot_take_all_streams",
    ),
    "view/replays.py:AT_ONCE_MAX": (
        "replays, one of each user",
        "tests/integration/test_view_replays.py::test_one_replay_for_each_user_and_few_at_once",
    ),
    "view/rights.py:TOKENS_MAX": ("tokens", _rights),
    "view/rights.py:RIGHTS_MAX": ("questions of rights", _rights),
    "fluxqueue_webhook/bounded.py:THREADS": (
        "admissions",
        FAIR_QUEUE,
    ),
    "fluxqueue_webhook/bounded.py:WAITING_MAX": (
        "admissions of a namespace",
        f"{FAIR_QUEUE}::test_one_namespace_cannot_fill_the_queue_for_others",
    ),
    "fluxqueue_webhook/bounded.py:PEER_WAITING_MAX": (
        "admissions of an address",
        f"{FAIR_QUEUE}::test_one_peer_takes_neither_all_places_nor_all_threads",
    ),
    "prediction/calibration.py:ERRORS_MAX": (
        "errors of expected starts",
        f"{CALIBRATION}::test_a_greedy_tenant_does_not_displace_the_errors_of_others",
    ),
    **dict.fromkeys(
        (
            "fluxqueue_webhook/large_bodies.py:WAITING_MAX",
            "fluxqueue_webhook/large_bodies.py:PEER_WAITING_MAX",
            "fluxqueue_webhook/large_bodies.py:OF_EACH_MAX",
        ),
        (
            "large admissions",
            f"{LARGE_BODIES}::test_one_tenant_cannot_take_all_waiting_places",
        ),
    ),
}

WITHIN: dict[str, str] = {
    "one text or number": """
        db/engine.py:_PORT_MAX db/liveness.py:TEXT_MAX db/reading/accounting.py:DIGITS_MAX
        db/store/matcher_rows.py:AMOUNT_MAX,TIME_MAX db/store/pending_actions.py:ERROR_MAX
        db/store/queue_snapshot.py:REASON_MAX errors.py:SHOWN_MAX,QUOTED_MAX,MESSAGE_MAX
        explain/review_status.py:TEXT_MAX fluxjob/dependency.py:NAMED_MAX fluxjob/faults.py:TEXT_MAX
        fluxjob/indexes.py:INDEX_MAX,DIGITS_MAX fluxjob/node.py:CAPACITY_MAX
        fluxjob/pod_facts.py:WORDS_MAX graph/tell/blockers.py:NAMED_MAX,HOSTLIST_MAX
        db/epoch.py:_MARK_MAX jobspec/extension.py:_AMOUNT_MAX,_GRACE_MAX
        jobspec/model.py:AMOUNT_MAX kube/events.py:NAME_MAX prediction/history.py:RUNS_MAX
        process/logs.py:ERROR_MAX nodepools/plan/node_requests.py:REASON_MAX
        scheduler/preemption_plan.py:NAMED_MAX scheduler/promises.py:NAMED_MAX,NODES_MAX
        scheduler/record.py:NUMBER_MAX,PRIORITY_MAX,TEXT_MAX
        scheduler/resource_set.py:SLOTS_MAX,NAME_MAX,TIME_MAX,AMOUNT_MAX
        view/parameters.py:LIMIT_MAX,TEXT_MAX,NAMES_MAX,TOKEN_MAX
        view/sessions.py:TOKEN_MAX,COOKIE_MAX workload/annotations.py:HINTS_MAX
        workload/pinning.py:_DIGITS_MAX workload/spans.py:DIGITS_MAX
        workload/submitter.py:NAME_MAX""",
    "one object, job, request or answer": """
        controller/observing/group_assembly.py:WINDOWS_MAX
        controller/observing/workloads.py:LEFT_MAX db/reading/changes.py:MISSED_MAX
        db/store/dependencies.py:WALKED_MAX
        explain/decide.py:REPLANNED_MAX,BLOCKERS_MAX
        explain/variants.py:VARIANTS_MAX,QUEUES_MAX,DEMANDS_MAX,LATER_MAX
        fluxjob/faults.py:TOLD_MAX jobspec/bounds.py:SLOTS_MAX,OPEN_MAX
        scheduler/node_choices.py:NODES_MAX nodepools/plan/node_packing.py:SLOTS_MAX,STEPS_MAX
        scheduler/node_sharing.py:SHOWN_MAX nodepools/plan/packing_task.py:NODES_MAX
        scheduler/sweeps.py:GROWTH_MAX scheduler/victims.py:SHRINK_MAX,TRIES_MAX,STEPS_MAX
        view/as_user.py:PODS_MAX,EVENTS_MAX view/change_stream.py:BATCHES_MAX,CATCH_UP_MAX
        view/replays.py:JOBS_MAX,TEXTS_MAX,TEXT_MAX view/window.py:BODY_MAX
        worker/review_tasks.py:CRASHES_MAX worker/sharing_keeping.py:JOBS_MAX
        workload/aliases.py:DEPTH_MAX workload/device_claims.py:REQUESTS_MAX
        workload/devices.py:SHARED_MAX workload/fingerprint.py:TEXT_MAX
        workload/fluxjob_object.py:LAST_GOOD_MAX
        workload/followers.py:FOLLOWERS_MAX workload/groups.py:SIZE_MAX
        workload/last_good.py:TRIES_MAX,FAULTS_MAX
        workload/object_shape.py:VALUES_MAX workload/pod_resources.py:QUANTITIES_MAX
        workload/starting.py:DEPENDENCIES_MAX,DEPENDS_ON_MAX
        workload/annotations.py:SWEEP_PODS_MAX""",
    "a cache, of which the rest is found again": """
        controller/observing/owners.py:KNOWN_MAX
        controller/observing/surroundings_watch.py:QUERIES_MAX,TESTS_MAX
        db/reading/fluxjobs.py:SHAPES_MAX graph/ledger/node_masks.py:MASKS_MAX
        graph/ledger/share_table.py:VECTORS_MAX graph/ledger/node_table.py:LOG_MAX
        graph/match/by_shares.py:OFFERS_MAX,ASKS_MAX,SKIPS_MAX kube/informer.py:TOMBSTONES_MAX
        nodepools/plan/plan_search.py:WALKS_MAX,EFFORT_MAX,PACKINGS_MAX
        worker/node_planning.py:HOLDS_MAX worker/plans.py:FRONT
        workload/device_selectors.py:_KNOWN_MAX""",
    "what only administrators make, such as nodes, pools, policies and namespaces": """
        nodepools/cluster/pool_following.py:SAMPLE_MAX fluxjob/levels.py:LEVELS_MAX,LABELS_MAX
        nodepools/pool.py:NODES_MAX,DEVICES_MAX,LEARNED_MAX,NAME_MAX
        policy/calendar/reservation.py:NODES_MAX,OCCURRENCES_MAX,WHY_MAX,EXCEPT_MAX
        policy/queue_policy.py:RESERVATIONS_MAX policy/sharing/arithmetic.py:PORTIONS_MAX
        policy/sharing/node_grants.py:RULES_MAX,WHY_MAX policy/sharing/rules.py:ORDER_MAX,SAID_MAX
        nodepools/plan/node_protection.py:CHANGES_MAX view/http_server.py:NODES_MAX,NAMESPACES_MAX
        worker/node_pool_keeping.py:SHOWN_MAX nodepools/cluster/own_objects.py:EXCLUDED_MAX
        worker/sharing_keeping.py:TAINTS_MAX
        worker/calendar_keeping.py:NAMED_MAX,NODE_LIST_MAX""",
    "tries, steps and connections of a process, which goes on": """
        controller/certificates.py:STEPS_MAX db/retention.py:STEP_MAX db/task_queue.py:POOL_MAX
        kube/client.py:LIST_RESTARTS_MAX kube/connection.py:ATTEMPTS_MAX""",
}
"""Bounds that no tenant can fill for another, by what they count within."""

LIMITS = {
    "db/sql/20_tasks.sql": {"20": "tests/integration/db/test_tasks.py"},
    "db/sql/31_dependencies.sql": {"1000": "dependents of one job"},
    "db/queries/dependencies.sql": {":limit": "circles around one job"},
    "db/queries/learned.sql": {":most": "TEMPLATES_MAX"},
    "db/queries/outlook.sql": {":slice": "rows that get an expected start, in slices"},
    "db/queries/queue_snapshot.sql": {
        "coalesce(q.queue_depth, :depth)": CROWDS,
        ":of_all": "OF_ALL",
        ":examined_max": "EXAMINED_MAX",
        ":limit": "EXAMINED_MAX",
    },
    "db/queries/tasks.sql": {":step": "rows that go, in steps"},
    "db/queries/retention.sql": {":step": "rows that go, in steps"},
}
"""LIMIT of statements that decide or write."""

PAGES = {"accounting", "changes", "fluxjobs", "nodes", "occupancy", "queue_use", "recorded_days"}
"""Files of statements that read pages of one answer."""


def _bounds() -> Iterator[str]:
    for folder in SERVERS:
        base = ROOT / folder
        root = base if folder == "fluxqueue" else base.parent
        for path in sorted(base.rglob("*.py")):
            part = path.relative_to(base).parts[0]
            if part in AT_THE_USER or part == "fluxion":
                continue
            for name in _constants(ast.parse(path.read_text(encoding="utf-8"))):
                if BOUND.fullmatch(name):
                    yield f"{path.relative_to(root)}:{name}"


def _constants(module: ast.Module) -> Iterator[str]:
    for statement in module.body:
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Name):
                        yield one.id


def _within() -> set[str]:
    found = set()
    for text in WITHIN.values():
        for one in text.split():
            path, _, names = one.partition(":")
            found |= {f"{path}:{name}" for name in names.split(",")}
    return found


def test_every_bound_has_an_entry() -> None:
    """A new one needs a check with a greedy tenant, or a reason why no tenant can fill it."""
    known, bounds = _within(), set(_bounds())
    assert not known & SHARED.keys()
    assert known | SHARED.keys() == bounds


def test_every_limit_of_a_statement_has_an_entry() -> None:
    found: dict[str, set[str]] = {}
    base = ROOT / "fluxqueue"
    for path in sorted((base / "db").rglob("*.*")):
        if path.suffix not in {".py", ".sql"} or path.stem in PAGES:
            continue
        limits = set(LIMIT.findall(path.read_text(encoding="utf-8"))) - {"1"}
        if limits:
            found[str(path.relative_to(base))] = limits
    assert found == {path: set(names) for path, names in LIMITS.items()}


@pytest.mark.parametrize("bound", [one for one in SHARED if callable(SHARED[one][1])])
async def test_a_greedy_tenant_leaves_something_to_a_modest_one(bound: str) -> None:
    check = SHARED[bound][1]
    assert callable(check)
    found = check()
    if found is not None:
        await found  # type: ignore[misc]


@pytest.mark.parametrize("bound", [one for one in SHARED if isinstance(SHARED[one][1], str)])
def test_the_check_of_a_bound_is_there(bound: str) -> None:
    """A file of tests, or one test in it."""
    check = SHARED[bound][1]
    assert isinstance(check, str)
    path, _, name = check.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert f"def {name}(" in text if name else "def test_" in text
