"""podFailurePolicy, successPolicy and backoffLimitPerIndex of Jobs. Pure.

It follows ``pod_failure_policy.go``, ``success_policy.go`` and the per-index parts of
``indexed_job_utils.go``. The messages are those of the recordings.
"""

from __future__ import annotations

from dataclasses import dataclass

from localcluster.controllers.job_pods import (
    FAILURES_KEY,
    IGNORED_FAILURES_KEY,
    counts_as_failed,
    finished_at,
    index_of,
    is_tracked,
    parse_indexes,
    valid_index,
)
from localcluster.obj import Obj


@dataclass(frozen=True, slots=True)
class PolicyMatch:
    """The first matching rule: its action and a message for FailJob."""

    action: str
    message: str


def match_failure_policy(job: Obj, pod: Obj) -> PolicyMatch | None:
    """Return the first rule of podFailurePolicy that matches a failed pod."""
    rules = (job["spec"].get("podFailurePolicy") or {}).get("rules") or ()
    for number, rule in enumerate(rules):
        action = rule.get("action", "Count")
        found = _match_exit_code(rule, pod) or _match_condition(rule, pod)
        if found:
            return PolicyMatch(action, f"{found} matching {action} rule at index {number}")
    return None


def _pod_name(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _match_exit_code(rule: Obj, pod: Obj) -> str:
    wanted = rule.get("onExitCodes")
    if not wanted:
        return ""
    status = pod.get("status") or {}
    statuses = [
        *(status.get("containerStatuses") or ()),
        *(status.get("initContainerStatuses") or ()),
    ]
    for container in statuses:
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is None or wanted.get("containerName") not in {None, container["name"]}:
            continue
        code = terminated.get("exitCode") or 0
        is_in = code in (wanted.get("values") or ())
        if code != 0 and is_in == (wanted.get("operator") == "In"):
            return (
                f"Container {container['name']} for pod {_pod_name(pod)} "
                f"failed with exit code {code}"
            )
    return ""


def _match_condition(rule: Obj, pod: Obj) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    for wanted in rule.get("onPodConditions") or ():
        for condition in conditions:
            is_same = condition.get("type") == wanted["type"]
            if is_same and condition.get("status") == wanted.get("status", "True"):
                return f"Pod {_pod_name(pod)} has condition {condition['type']}"
    return ""


def is_failure_counted(job: Obj, pod: Obj) -> bool:
    """Return whether the failure counts towards backoffLimit (not with the action Ignore)."""
    found = match_failure_policy(job, pod)
    return found is None or found.action != "Ignore"


def fail_job_message(job: Obj, pods: list[Obj]) -> str:
    """Return the message of a FailJob match among ``pods``, or an empty text."""
    for pod in pods:
        if counts_as_failed(pod, job):
            found = match_failure_policy(job, pod)
            if found is not None and found.action == "FailJob":
                return found.message
    return ""


def match_success_policy(job: Obj, succeeded: set[int]) -> str:
    """Return the message of the first successPolicy rule that is met, or an empty text."""
    policy = job["spec"].get("successPolicy")
    if not policy or not succeeded:
        return ""
    completions = job["spec"]["completions"]
    for number, rule in enumerate(policy.get("rules") or ()):
        counted = succeeded
        enough = rule.get("succeededCount")
        if rule.get("succeededIndexes") is not None:
            wanted = parse_indexes(rule["succeededIndexes"], completions)
            counted = succeeded & wanted
            enough = len(wanted) if enough is None else enough
        if enough is not None and len(counted) >= enough:
            return f"Matched rules at index {number}"
    return ""


def failure_count(pod: Obj, key: str = FAILURES_KEY) -> int:
    """Return how often the index had failed before this pod was created."""
    value = (pod["metadata"].get("annotations") or {}).get(key, "")
    return int(value) if value.isdigit() else 0


def failed_indexes(job: Obj, pods: list[Obj]) -> set[int]:
    """Return the indexes that exceeded backoffLimitPerIndex, or met a FailIndex rule."""
    found = parse_indexes(
        (job.get("status") or {}).get("failedIndexes"), job["spec"]["completions"]
    )
    for pod in pods:
        index = valid_index(pod, job)
        if index is None or not is_tracked(pod) or not counts_as_failed(pod, job):
            continue
        match = match_failure_policy(job, pod)
        is_final = match is not None and match.action == "FailIndex"
        is_ignored = match is not None and match.action == "Ignore"
        is_used_up = failure_count(pod) >= job["spec"]["backoffLimitPerIndex"]
        if is_final or (is_used_up and not is_ignored):
            found.add(index)
    return found


def kept_failures(job: Obj, pods: list[Obj], done: set[int], active: set[int]) -> dict[int, Obj]:
    """Return for each unfinished, unreplaced index the failed pod that has its failure count.

    The pod keeps its finalizer until its replacement, which inherits the count, has been created.
    """
    kept: dict[int, Obj] = {}
    for pod in pods:
        index = valid_index(pod, job)
        if index is None or index in done or index in active:
            continue
        if not is_tracked(pod) or not counts_as_failed(pod, job):
            continue
        if index not in kept or _failures_so_far(kept[index]) < _failures_so_far(pod):
            kept[index] = pod
    return kept


def _failures_so_far(pod: Obj) -> tuple[int, object]:
    total = failure_count(pod) + failure_count(pod, IGNORED_FAILURES_KEY)
    return total, finished_at(pod)


def inherited_counts(job: Obj, failed: Obj | None) -> dict[str, str]:
    """Return annotations for a new pod of an index with the last pod ``failed``."""
    if failed is None:
        return {FAILURES_KEY: "0"}
    counted, ignored = failure_count(failed), failure_count(failed, IGNORED_FAILURES_KEY)
    if is_failure_counted(job, failed):
        counted += 1
    else:
        ignored += 1
    annotations = {FAILURES_KEY: str(counted)}
    if ignored:
        annotations[IGNORED_FAILURES_KEY] = str(ignored)
    return annotations


def index_of_kept(kept: dict[int, Obj], pod: Obj) -> bool:
    """Return whether ``pod`` is kept for its index."""
    index = index_of(pod)
    return index is not None and kept.get(index) is pod
