"""FluxJob objects, held against the definition that the cluster will hold them against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml

from fluxqueue.fluxjob.states import SHOWN, FluxJobState
from fluxqueue.workload import fluxjob_object as fo
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from tests.support.workloads import bare_pod, batch_job

pytestmark = pytest.mark.xdist_group("jsonschema")

CRD_PATH = Path(__file__).parents[3] / "chart" / "crds" / "fluxjobs.yaml"


def validate(fluxjob: dict[str, Any], schema: dict[str, Any]) -> None:
    """Imported where it is used: with jsonschema comes a grammar that is compiled each time."""
    import jsonschema

    jsonschema.validate(fluxjob, schema)


@pytest.fixture(scope="module")
def crd() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CRD_PATH.read_text())
    return loaded


@pytest.fixture(scope="module")
def schema(crd: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return _closed(found)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse unknown fields, where the API server would prune them."""
    closed = dict(schema)
    if "properties" in closed:
        closed["properties"] = {k: _closed(v) for k, v in closed["properties"].items()}
        closed["additionalProperties"] = False
    if "items" in closed:
        closed["items"] = _closed(closed["items"])
    return closed


def test_builds_the_fluxjob_of_a_batch_job(schema: dict[str, Any]) -> None:
    job = batch_job("pi", parallelism=4, completions=9, activeDeadlineSeconds=60)
    fluxjob = fo.build(job, BATCH_JOB.to_request(job), priority=5, queue="fast")
    assert fluxjob["metadata"]["name"] == "pi-job"
    assert fluxjob["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "pi",
            "uid": "uid-pi",
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    spec = fluxjob["spec"]
    assert (spec["size"], spec["durationSeconds"], spec["priority"], spec["queue"]) == (
        4,
        60,
        5,
        "fast",
    )
    assert spec["jobspec"]["resources"][0]["count"] == 4
    validate({**fluxjob, "metadata": {}}, schema)
    assert fo.is_fluxjob_of(fluxjob, job)
    assert not fo.is_fluxjob_of(fluxjob, batch_job("pi", meta={"uid": "later"}))


def test_builds_the_fluxjob_of_a_pod_from_a_list_without_kind(schema: dict[str, Any]) -> None:
    pod = {key: value for key, value in bare_pod().items() if key not in {"kind", "apiVersion"}}
    fluxjob = fo.build(pod, BARE_POD.to_request(pod), priority=0)
    assert fluxjob["metadata"]["name"] == "solo-pod"
    assert fluxjob["spec"]["workload"]["apiVersion"] == "v1"
    assert "durationSeconds" not in fluxjob["spec"]
    validate({**fluxjob, "metadata": {}}, schema)


def test_long_names_are_cut_and_stay_apart() -> None:
    names = ["x" * 249, "x" * 250, "x" * 251, "x" * 238 + ".-" + "y" * 12]
    made = [fo.fluxjob_name(bare_pod(name)) for name in names]
    assert made[0] == "x" * 249 + "-pod"
    assert all(len(name) <= 253 and name.endswith("-pod") for name in made)
    assert len(set(made)) == len(names)
    assert ".-" not in made[3]


@pytest.mark.parametrize("state", list(FluxJobState))
def test_every_state_fits_the_definition(schema: dict[str, Any], state: FluxJobState) -> None:
    status = fo.FluxJobStatus(
        state=state,
        reason="because",
        version=3,
        jobid=12,
        nodes=["n1", "n1", "n2"],
        started_at_s=1_700_000_000,
        ended_at_s=1_700_000_060,
        resource_set={"version": 1},
        conditions=fo.FluxJobLife(
            state=state, submitted_at_s=1_699_999_999, ignored=["host ports"]
        ).conditions(),
    ).render()
    fluxjob = {"spec": {"workload": dict.fromkeys(["apiVersion", "kind", "name", "uid"], "x")}}
    fluxjob["spec"]["size"] = 1
    validate({**fluxjob, "status": status}, schema)
    assert status["nodes"] == "n[1-2]"


def test_start_shows_the_real_or_the_expected_time() -> None:
    state = FluxJobState.RESERVED
    real = fo.FluxJobStatus(state=state, started_at_s=1_700_000_000, expected_start_s=9).render()
    expected = fo.FluxJobStatus(state=state, expected_start_s=1_700_000_000).render()
    assert (real["start"], real["startTime"]) == ("2023-11-14T22:13:20Z",) * 2
    assert "expectedStart" not in real
    assert expected["start"] == "~2023-11-14T22:13:20Z"
    assert "start" not in fo.FluxJobStatus(state=state).render()


def test_the_later_time_is_shown_beside_the_expected_start() -> None:
    """It is never the earlier of the two, and goes with it."""
    shown = {"state": FluxJobState.PENDING, "expected_by_s": 1_700_000_060}
    found = fo.FluxJobStatus(expected_start_s=1_700_000_000, **shown).render()
    assert found["expectedBy"] == "2023-11-14T22:14:20Z"
    overtaken = fo.FluxJobStatus(expected_start_s=1_700_000_100, **shown).render()
    assert overtaken["expectedBy"] == overtaken["expectedStart"]
    assert "expectedBy" not in fo.FluxJobStatus(**shown).render()
    assert "expectedBy" not in fo.FluxJobStatus(started_at_s=9, **shown).render()


@pytest.mark.parametrize(
    ("word", "start"),
    [("Queued", "unknown yet"), ("OverLimit", "unknown (OverLimit)")],
)
def test_an_unknown_start_says_why(word: str, start: str) -> None:
    """The column is empty for no job in the queue."""
    state = FluxJobState.PENDING
    life = fo.FluxJobLife(state=state, submitted_at_s=1, reason=word)
    assert fo.FluxJobStatus(state=state, conditions=life.conditions()).render()["start"] == start


def _conditions(**arguments: Any) -> dict[str, tuple[str, str]]:
    rendered = fo.FluxJobLife(**arguments).conditions()
    return {c["type"]: (c["status"], c["lastTransitionTime"][-3:]) for c in rendered}


def test_conditions_follow_the_life() -> None:
    at = 1_700_000_000 - 20  # a full minute, so that the seconds below can be read
    states = FluxJobState
    no = ("False", "01Z")
    assert _conditions(state=states.PENDING, submitted_at_s=at + 1) == {
        "Queued": ("True", "01Z"),
        "Reserved": no,
        "Allocated": no,
        "Released": no,
        "Running": no,
        "Finished": no,
    }
    reserved = fo.Since(queued=at + 1, reserved=at + 2)
    assert _conditions(state=states.RESERVED, submitted_at_s=at + 1, since=reserved) == {
        "Queued": ("True", "01Z"),
        "Reserved": ("True", "02Z"),
        "Allocated": no,
        "Released": no,
        "Running": no,
        "Finished": no,
    }
    runs = fo.Since(at + 1, at + 3, at + 2, at + 3, at + 4)
    assert _conditions(
        state=states.RUNNING, submitted_at_s=at + 1, started_at_s=at + 3, since=runs
    ) == {
        "Queued": ("False", "03Z"),
        "Reserved": ("False", "03Z"),
        "Allocated": ("True", "03Z"),
        "Released": ("True", "03Z"),
        "Running": ("True", "04Z"),
        "Finished": no,
    }
    assert _conditions(
        state=states.FAILED,
        submitted_at_s=at + 1,
        started_at_s=at + 3,
        ended_at_s=at + 5,
        since=runs,
    ) == {
        "Queued": ("False", "03Z"),
        "Reserved": ("False", "03Z"),
        "Allocated": ("False", "05Z"),
        "Released": ("False", "05Z"),
        "Running": ("False", "05Z"),
        "Finished": ("True", "05Z"),
    }


def test_the_reason_is_told_once_with_what_it_is_about() -> None:
    """The word is that of the Event. The sentence goes with the condition of the state."""
    held = fo.FluxJobLife(
        state=FluxJobState.HELD, submitted_at_s=1, message="over a limit", reason="HeldByQueue"
    ).conditions()
    assert {one["reason"] for one in held} == {"HeldByQueue"}
    assert [one["type"] for one in held if one["message"]] == ["Queued"]
    runs = fo.FluxJobLife(state=FluxJobState.RUNNING, submitted_at_s=1, started_at_s=2).conditions()
    assert {one["reason"] for one in runs} == {"Started"}


@pytest.mark.parametrize(
    ("state", "how", "word"),
    [
        ("Pending", {}, "Queued"),
        ("Pending", {"wait_reason": "OverLimit"}, "OverLimit"),
        ("Pending", {"blocked_by": "begin-time"}, "BeginTime"),
        ("Pending", {"blocked_by": "dependency", "wait_reason": "OverLimit"}, "Dependency"),
        ("Reserved", {}, "Reserved"),
        ("Held", {"held_by": "author"}, "Held"),
        ("Held", {"held_by": "queue"}, "HeldByQueue"),
        ("Held", {"held_by": "dependency"}, "DependencyNeverSatisfied"),
        ("Gathering", {}, "Gathering"),
        ("Gathering", {"is_overdue": True}, "Overdue"),
        ("Gathering", {"is_overdue": True, "held_by": "queue"}, "HeldByQueue"),
        ("Allocated", {}, "Started"),
        ("Running", {}, "Started"),
        ("Failed", {}, "Failed"),
    ],
)
def test_what_keeps_a_fluxjob_has_a_word(state: str, how: dict[str, Any], word: str) -> None:
    assert fo.reason_of(FluxJobState(state), **how) == word


def test_who_is_to_stop_has_its_nodes_and_is_not_released() -> None:
    """A requeue waits for the pods to end."""
    conditions = _conditions(
        state=FluxJobState.RUNNING, submitted_at_s=1, started_at_s=2, is_to_stop=True
    )
    assert (conditions["Allocated"][0], conditions["Released"][0]) == ("True", "False")


def test_conditions_say_of_which_spec_they_are() -> None:
    """As the status does."""
    state, at_s = FluxJobState.PENDING, 1
    found = fo.FluxJobLife(
        state=state, submitted_at_s=at_s, ignored=["host ports"], generation=3
    ).conditions()
    assert {one["observedGeneration"] for one in found} == {3}
    assert fo.FluxJobStatus(state=state, generation=3).render()["observedGeneration"] == 3


def test_ignored_constraints_are_named_in_a_condition() -> None:
    (*_, last) = fo.FluxJobLife(
        state=FluxJobState.PENDING, submitted_at_s=1, ignored=["pod affinity", "host ports"]
    ).conditions()
    assert (last["type"], last["status"]) == ("ConstraintsIgnored", "True")
    assert "pod affinity, host ports" in last["message"]


def test_the_definition_names_every_state_and_only_those(crd: dict[str, Any]) -> None:
    version = crd["spec"]["versions"][0]
    state = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]["state"]
    assert sorted(state["enum"]) == sorted(SHOWN)


def test_the_definition_is_the_one_the_code_writes(crd: dict[str, Any]) -> None:
    names = crd["spec"]["names"]
    assert (crd["spec"]["group"], names["kind"], names["plural"]) == (fo.GROUP, fo.KIND, fo.PLURAL)
    assert crd["metadata"]["name"] == f"{fo.PLURAL}.{fo.GROUP}"
    assert crd["spec"]["versions"][0]["name"] == fo.VERSION


def test_printer_columns_in_order_and_none_in_the_future_as_date(crd: dict[str, Any]) -> None:
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    names = [column["name"].upper() for column in columns if not column.get("priority")]
    assert names == [
        *("JOBID", "STATE", "SIZE", "NODES", "PRIORITY", "QUEUE", "START", "REASON", "AGE")
    ]
    assert next(c for c in columns if c["name"] == "Start")["type"] == "string"
    wide = [column["name"].upper() for column in columns if column.get("priority")]
    assert wide == ["POSITION", "EXPECTED", "EXPECTED-BY", "USER"]


@pytest.mark.parametrize(
    "definition", sorted(CRD_PATH.parent.glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_field_is_explained(definition: Path) -> None:
    """``kubectl explain`` shows these. A field without words explains nothing."""
    crd = yaml.safe_load(definition.read_text(encoding="utf-8"))
    silent: list[str] = []

    def visit(node: dict[str, Any], path: str) -> None:
        if "description" not in node and path != ".metadata" and not path.endswith("[]"):
            silent.append(path)
        for name, child in node.get("properties", {}).items():
            visit(child, f"{path}.{name}")
        if "items" in node:
            visit(node["items"], f"{path}[]")

    visit(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], "")
    assert silent == []


def test_a_status_replaces_the_one_before(crd: dict[str, Any]) -> None:
    """Nothing of a full status outlives a patch by an empty one, whatever the definition has."""
    full = fo.FluxJobStatus(
        state=FluxJobState.RESERVED,
        workload_uid="u1",
        jobid=1,
        nodes=["n1"],
        started_at_s=1,
        ended_at_s=2,
        resource_set={"version": 1},
        operator={"heldBy": "alice"},
        queue="batch",
        accepted_by="batch",
        author_hold="annotation",
        priority=7,
        priority_parts={"asked": 7},
        place=9,
        position=4,
        generation=2,
        last_good={"fluxqueue/priority": "5"},
    ).render() | dict.fromkeys(("expectedStart", "expectedBy"), "2026-01-01T00:00:00Z")
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert full.keys() == schema["properties"]["status"]["properties"].keys()
    bare = fo.FluxJobStatus(state=FluxJobState.PENDING).render()
    for before in ({"status": full}, {}):
        assert jsonpatch.apply_patch(before, fo.status_patch(bare)) == {"status": bare}
