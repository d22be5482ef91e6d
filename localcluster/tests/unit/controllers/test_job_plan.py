"""One sync of a Job: what is made, deleted, written. Cases follow the recordings of a real one."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.controllers.job_backoff import BackoffRecord
from localcluster.controllers.job_plan import (
    UNCOUNTED_MAX,
    JobPlan,
    finish,
    plan_job,
    settle_counts,
)
from localcluster.loops.options import ControllerOptions
from tests.support.builders import NOW, Obj, at, job, pod

OPTIONS = ControllerOptions()
RUNNING = {"startTime": at(-100)}


def _plan(subject: Obj, pods: list[Obj], backoff: BackoffRecord | None = None) -> JobPlan:
    return plan_job(subject, pods, NOW, backoff or BackoffRecord(), OPTIONS)


def _types(status: dict[str, Any]) -> list[str]:
    return [c["type"] for c in status.get("conditions", [])]


def test_new_job() -> None:
    """First sync: startTime, all pods at once, zero counts left out but ready and terminating."""
    plan = _plan(job(parallelism=2, completions=3), [])
    assert len(plan.create) == 2
    assert plan.status == {
        "startTime": at(0),
        "active": 2,
        "terminating": 0,
        "uncountedTerminatedPods": {},
        "ready": 0,
    }
    assert plan.final is None
    assert plan.release == []


def test_nothing_changes() -> None:
    """A second sync of the same state writes the same status and does nothing."""
    status = {**RUNNING, "active": 1, "ready": 1, "terminating": 0, "uncountedTerminatedPods": {}}
    plan = _plan(job(status=status), [pod("a")])
    assert plan.status == status
    assert not plan.create
    assert not plan.delete
    assert not plan.release


def test_success_is_counted_in_two_writes() -> None:
    """The uid first, then the finalizer, then the total. With completions left a new pod."""
    subject = job(parallelism=2, completions=3, status={**RUNNING, "active": 2})
    plan = _plan(subject, [pod("a", "Succeeded"), pod("b")])
    assert len(plan.create) == 1
    assert plan.status["uncountedTerminatedPods"] == {"succeeded": ["uid-a"]}
    assert "succeeded" not in plan.status
    assert [p["metadata"]["name"] for p in plan.release] == ["a"]
    settle_counts(plan.status, set())
    assert plan.status["succeeded"] == 1
    assert plan.status["uncountedTerminatedPods"] == {}
    assert plan.final is None


def test_completion() -> None:
    """SuccessCriteriaMet with the last uid. Complete only when nothing is uncounted."""
    subject = job(completions=1, status={**RUNNING, "active": 1})
    plan = _plan(subject, [pod("a", "Succeeded")])
    assert _types(plan.status) == ["SuccessCriteriaMet"]
    assert finish(plan.status, plan.final, NOW) is None
    settle_counts(plan.status, set())
    assert finish(plan.status, plan.final, NOW) == ("Normal", "Completed", "Job completed")
    assert _types(plan.status) == ["SuccessCriteriaMet", "Complete"]
    assert plan.status["completionTime"] == at(0)
    assert plan.status["conditions"][1]["reason"] == "CompletionsReached"


def test_counted_pods_are_not_counted_again() -> None:
    """After a crash between the two writes the uid is there already."""
    status = {**RUNNING, "uncountedTerminatedPods": {"succeeded": ["uid-a", "uid-gone"]}}
    plan = _plan(job(completions=5, status=status), [pod("a", "Succeeded")])
    assert plan.status["uncountedTerminatedPods"] == {"succeeded": ["uid-a"]}
    assert plan.status["succeeded"] == 1  # the one whose finalizer is gone


def test_replacement_waits_for_the_backoff() -> None:
    """10 s after the failure, by the pod's finish time, doubled for the second."""
    subject = job(status={**RUNNING, "active": 1})
    plan = _plan(subject, [pod("a", "Failed", ended_s=-4)])
    assert plan.create == []
    assert plan.look_again_s == 6
    assert plan.backoff.failures == 1
    assert plan.status["uncountedTerminatedPods"] == {"failed": ["uid-a"]}
    later = _plan(subject, [], BackoffRecord(2, NOW))
    assert later.look_again_s == 20
    assert _plan(subject, [], BackoffRecord(1, None)).create


def test_backoff_limit() -> None:
    """FailureTarget deletes what runs and counts it as failed. Failed waits for the terminating."""
    subject = job(parallelism=3, completions=3, backoffLimit=0, status=RUNNING)
    plan = _plan(subject, [pod("a", "Failed"), pod("b"), pod("c")])
    assert [p["metadata"]["name"] for p in plan.delete] == ["b", "c"]
    assert not plan.is_stripped_first
    assert plan.status["uncountedTerminatedPods"] == {"failed": ["uid-a", "uid-b", "uid-c"]}
    assert (plan.status["terminating"], plan.status["ready"]) == (2, 0)
    assert "active" not in plan.status
    settle_counts(plan.status, set())
    assert plan.status["failed"] == 3
    assert finish(plan.status, plan.final, NOW) is None
    plan.status["terminating"] = 0
    event = finish(plan.status, plan.final, NOW)
    assert event == (
        "Warning",
        "BackoffLimitExceeded",
        "Job has reached the specified backoff limit",
    )
    assert _types(plan.status) == ["FailureTarget", "Failed"]
    assert "completionTime" not in plan.status


def test_failure_target_is_followed_up() -> None:
    """A later sync finds the interim condition and goes on to Failed."""
    target = {
        "type": "FailureTarget",
        "status": "True",
        "reason": "DeadlineExceeded",
        "message": "m",
    }
    plan = _plan(job(status={**RUNNING, "failed": 1, "conditions": [target]}), [])
    assert plan.create == []
    assert finish(plan.status, plan.final, NOW) == ("Warning", "DeadlineExceeded", "m")


def test_deadline() -> None:
    """It counts from startTime. Before it strikes the Job is looked at again in time."""
    early = _plan(job(activeDeadlineSeconds=130, status=RUNNING), [pod("a")])
    assert early.look_again_s == 30
    late = _plan(job(activeDeadlineSeconds=100, status=RUNNING), [pod("a")])
    assert _types(late.status) == ["FailureTarget"]
    assert late.status["conditions"][0]["reason"] == "DeadlineExceeded"
    assert len(late.delete) == 1


@pytest.mark.parametrize("limit", [2**31, 2**40, 2**63 - 1])
def test_a_deadline_beyond_the_calendar_never_strikes(limit: int) -> None:
    """The API server accepts any int64 as activeDeadlineSeconds."""
    plan = _plan(job(activeDeadlineSeconds=limit, status=RUNNING), [pod("a")])
    assert plan.delete == []
    assert plan.look_again_s is not None
    assert plan.look_again_s > 2**30


def test_suspended_from_the_beginning() -> None:
    """No startTime, the condition, its event. The deadline does not run."""
    plan = _plan(job(suspend=True, activeDeadlineSeconds=1), [])
    assert "startTime" not in plan.status
    assert plan.status["conditions"][0]["reason"] == "JobSuspended"
    assert plan.events == [("Normal", "Suspended", "Job suspended")]
    assert plan.look_again_s is None
    assert plan.create == []


def test_suspension_of_a_running_job() -> None:
    """Finalizers first, then deletion. Such pods terminate and never count as failed."""
    subject = job(suspend=True, parallelism=2, completions=3, status={**RUNNING, "succeeded": 1})
    plan = _plan(subject, [pod("a"), pod("b", "Pending")])
    assert plan.is_stripped_first
    assert len(plan.delete) == 2
    assert plan.release == []
    assert plan.status["terminating"] == 2
    assert "startTime" not in plan.status
    after = _plan(job(suspend=True, status=plan.status), [pod("a", deleted=True, tracked=False)])
    assert "failed" not in after.status
    assert after.status["uncountedTerminatedPods"] == {}


def test_resumption() -> None:
    """The same condition turns False, startTime is set anew."""
    held = {"type": "Suspended", "status": "True", "reason": "JobSuspended"}
    plan = _plan(job(status={"conditions": [held]}), [])
    assert plan.status["startTime"] == at(0)
    assert len(plan.status["conditions"]) == 1
    assert plan.status["conditions"][0]["status"] == "False"
    assert plan.events == [("Normal", "Resumed", "Job resumed")]
    assert len(plan.create) == 1


def test_never_suspended_jobs_get_no_condition() -> None:
    """False is only written where True was."""
    assert "conditions" not in _plan(job(), []).status


def test_scale_down_keeps_ready_pods() -> None:
    """Unbound and unready pods go first, without their finalizer, and are not failures."""
    unbound = pod("unbound", "Pending")
    unbound["spec"]["nodeName"] = ""
    plan = _plan(
        job(parallelism=1, completions=10, status=RUNNING),
        [pod("ready"), pod("waiting", "Pending"), unbound],
    )
    assert [p["metadata"]["name"] for p in plan.delete] == ["unbound", "waiting"]
    assert plan.is_stripped_first
    assert (plan.status["active"], plan.status["terminating"]) == (1, 2)


def test_deleted_pod_counts_as_failed_at_once() -> None:
    """TerminatingOrFailed (default): a pod being deleted is a failure, its successor may start."""
    plan = _plan(job(status=RUNNING), [pod("a", deleted=True)])
    assert plan.status["uncountedTerminatedPods"] == {"failed": ["uid-a"]}
    assert plan.status["terminating"] == 1


def test_replacement_policy_failed_waits_for_the_end() -> None:
    """Failed: neither counted nor replaced while it terminates."""
    subject = job(podReplacementPolicy="Failed", status=RUNNING)
    plan = _plan(subject, [pod("a", deleted=True)])
    assert plan.create == []
    assert plan.status["uncountedTerminatedPods"] == {}
    assert plan.release == []


def test_work_queue_jobs() -> None:
    """Without completions one success is enough, once nothing runs any more."""
    subject = job(parallelism=3, status={**RUNNING, "succeeded": 1})
    subject["spec"]["completions"] = None
    running = _plan(subject, [pod("a")])
    assert running.create == []
    assert running.final is None
    assert _types(_plan(subject, []).status) == ["SuccessCriteriaMet"]


def test_job_being_deleted_lets_its_pods_go() -> None:
    """All finalizers come off, nothing is made."""
    subject = job(status=RUNNING, metadata={"deletionTimestamp": at(0)}, completions=5)
    plan = _plan(subject, [pod("a")])
    assert [p["metadata"]["name"] for p in plan.release] == ["a"]
    assert plan.create == []
    assert plan.delete == []


def test_restart_in_place_counts_towards_the_limit() -> None:
    """restartPolicy OnFailure: restartCount of running pods."""
    template = {"spec": {"restartPolicy": "OnFailure", "containers": [{}]}}
    running = pod("a")
    running["status"]["containerStatuses"] = [{"restartCount": 2}]
    assert _plan(job(template=template, backoffLimit=3), [running]).final is None
    plan = _plan(job(template=template, backoffLimit=2), [running])
    assert plan.final is not None
    assert plan.final["reason"] == "BackoffLimitExceeded"


# -- Indexed ---------------------------------------------------------------------------------------


def _indexed(**spec: Any) -> Obj:
    return job(completionMode="Indexed", **spec)


def test_indexed_pods() -> None:
    """The lowest pending indexes, with name, host name, label, annotation and environment."""
    subject = _indexed(parallelism=2, completions=4, status={**RUNNING, "completedIndexes": "0"})
    plan = _plan(subject, [pod("j-1", index=1)])
    made = plan.create[0]
    key = "batch.kubernetes.io/job-completion-index"
    assert made["metadata"]["generateName"] == "j-2-"
    assert made["metadata"]["labels"][key] == "2"
    assert made["metadata"]["annotations"][key] == "2"
    assert made["spec"]["hostname"] == "j-2"
    assert made["spec"]["containers"][0]["env"][0]["valueFrom"]["fieldRef"] == {
        "apiVersion": "v1",
        "fieldPath": f"metadata.labels['{key}']",
    }
    assert len(plan.create) == 1


def test_completed_indexes() -> None:
    """Successes go straight to completedIndexes, without uids."""
    subject = _indexed(parallelism=3, completions=3, status=RUNNING)
    pods = [pod("a", "Succeeded", index=0), pod("b", index=1), pod("c", "Succeeded", index=2)]
    plan = _plan(subject, pods)
    assert (plan.status["completedIndexes"], plan.status["succeeded"]) == ("0,2", 2)
    assert plan.status["uncountedTerminatedPods"] == {}
    assert len(plan.release) == 2


def test_shrinking_forgets_indexes_beyond() -> None:
    """Elastic Indexed Jobs: completions 2 leaves index 0 of 0,2."""
    status = {**RUNNING, "completedIndexes": "0,2", "succeeded": 2}
    plan = _plan(_indexed(parallelism=2, completions=2, status=status), [pod("b", index=1)])
    assert (plan.status["completedIndexes"], plan.status["succeeded"]) == ("0", 1)


def test_doubled_indexes_are_removed() -> None:
    """Two pods of one index: the less ready one goes."""
    subject = _indexed(parallelism=2, completions=2, status=RUNNING)
    pods = [pod("a", index=0), pod("b", "Pending", index=0), pod("c", index=1)]
    assert [p["metadata"]["name"] for p in _plan(subject, pods).delete] == ["b"]


def test_backoff_limit_per_index() -> None:
    """An index that used up its failures is failed. The Job goes on until all are decided."""
    subject = _indexed(parallelism=2, completions=2, backoffLimitPerIndex=0, status=RUNNING)
    subject["spec"]["backoffLimit"] = 2**31 - 1
    plan = _plan(subject, [pod("a", "Failed", index=0), pod("b", index=1)])
    assert plan.status["failedIndexes"] == "0"
    assert plan.final is None
    done = _plan(subject, [pod("a", "Failed", index=0), pod("b", "Succeeded", index=1)])
    assert done.final is not None
    assert (done.final["reason"], done.final["type"]) == ("FailedIndexes", "FailureTarget")


def test_failure_counts_are_inherited_per_index() -> None:
    """The failed pod keeps its finalizer until its replacement, which carries the count, exists."""
    key = "batch.kubernetes.io/job-index-failure-count"
    subject = _indexed(parallelism=2, completions=2, backoffLimitPerIndex=3, status=RUNNING)
    failed = pod("a", "Failed", index=0, ended_s=-600, annotations={key: "1"})
    plan = _plan(subject, [failed, pod("b", index=1)])
    assert plan.create[0]["metadata"]["annotations"][key] == "2"
    assert plan.release == []
    replaced = _plan(subject, [failed, pod("a2", index=0), pod("b", index=1)])
    assert [p["metadata"]["name"] for p in replaced.release] == ["a"]


# -- policies --------------------------------------------------------------------------------------

POLICY = {
    "rules": [
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "main", "operator": "In", "values": [42]},
        },
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
}


def test_fail_job_by_exit_code() -> None:
    """The message names container, pod, code and rule."""
    plan = _plan(job(podFailurePolicy=POLICY, status=RUNNING), [pod("a", "Failed", exit_code=42)])
    assert plan.final is not None
    assert plan.final["reason"] == "PodFailurePolicy"
    assert plan.final["message"] == (
        "Container main for pod n/a failed with exit code 42 matching FailJob rule at index 0"
    )


def test_ignored_failures_do_not_count() -> None:
    """A disrupted pod is replaced without using up the limit."""
    lost = pod("a", "Failed", ended_s=-60)
    lost["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True"})
    plan = _plan(job(podFailurePolicy=POLICY, backoffLimit=0, status=RUNNING), [lost])
    assert plan.final is None
    assert plan.status["uncountedTerminatedPods"] == {}
    assert [p["metadata"]["name"] for p in plan.release] == ["a"]
    assert len(plan.create) == 1


def test_success_policy() -> None:
    """Index 0 is enough: the others are deleted, not failed, and their indexes stay open."""
    subject = _indexed(
        parallelism=3,
        completions=3,
        successPolicy={"rules": [{"succeededIndexes": "0"}]},
        status=RUNNING,
    )
    pods = [pod("a", "Succeeded", index=0), pod("b", index=1), pod("c", index=2)]
    plan = _plan(subject, pods)
    assert plan.status["conditions"][0]["reason"] == "SuccessPolicy"
    assert plan.status["conditions"][0]["message"] == "Matched rules at index 0"
    assert plan.status["completedIndexes"] == "0"
    assert len(plan.delete) == 2
    assert plan.status["uncountedTerminatedPods"] == {}


def test_too_many_pods_for_one_status() -> None:
    """At most 500 uids a write. The last condition waits for the rest."""
    pods = [pod(f"p{i}", "Succeeded") for i in range(UNCOUNTED_MAX + 1)]
    plan = _plan(job(parallelism=9, completions=len(pods), status=RUNNING), pods)
    assert len(plan.release) == UNCOUNTED_MAX
    assert plan.final is None
    assert plan.look_again_s == 0


@pytest.mark.parametrize("policy", ["TerminatingOrFailed", "Failed"])
def test_every_pod_ends_up_counted_once(policy: str) -> None:
    """Whatever the order of crashes between the writes, totals add up to the pods that ended."""
    pods = [pod("s", "Succeeded"), pod("f", "Failed"), pod("r")]
    subject = job(completions=9, parallelism=1, podReplacementPolicy=policy, status=RUNNING)
    plan = _plan(subject, pods)
    crashed = {**subject, "status": plan.status}  # written, then the process died
    again = _plan(crashed, pods, plan.backoff)
    assert again.status["uncountedTerminatedPods"] == plan.status["uncountedTerminatedPods"]
    settle_counts(again.status, set())
    assert (again.status["succeeded"], again.status["failed"]) == (1, 1)
    rest = [pod("s", "Succeeded", tracked=False), pod("f", "Failed", tracked=False), pod("r")]
    final = _plan({**subject, "status": again.status}, rest)
    assert (final.status["succeeded"], final.status["failed"]) == (1, 1)
