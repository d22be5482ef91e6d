"""Which lines of a container's log there are, by its pod's status. Which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.kinds.pod_log import Line, LogOptions, container_of, shown, written
from localcluster.types.refusals import StatusError

T = "2030-01-01T00:00:{:02}Z".format


def ended(began: int, end: int, code: int) -> dict[str, Any]:
    """State of a run that is over."""
    return {"terminated": {"exitCode": code, "startedAt": T(began), "finishedAt": T(end)}}


RUNNING = {"running": {"startedAt": T(20)}}


def pod(state: Any, last: Any = None, text: str | None = None, **status: Any) -> dict[str, Any]:
    """One container ``main`` on node n."""
    notes = {} if text is None else {"localcluster/logs": text}
    one = {"name": "main", "state": state, "lastState": last or {}}
    statuses = [one] if state is not None else []
    return {
        "metadata": {"name": "p", "annotations": notes},
        "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
        "status": {"containerStatuses": statuses, **status},
    }


def texts(of: dict[str, Any], **options: Any) -> list[str]:
    """The lines of its present run, or the one before."""
    return [line.text for line in written(of, "main", **options).lines]


BEGUN, DONE = "simulated container main started on n", "simulated container main exited with 3"


def test_a_line_at_the_start_and_one_at_the_end() -> None:
    """Each at its time. The log is over with the run."""
    so_far = written(pod(RUNNING), "main")
    assert (so_far.lines, so_far.is_over) == ((Line(T(20), BEGUN),), False)
    whole = written(pod(ended(20, 25, 3)), "main")
    assert (whole.lines, whole.is_over) == ((Line(T(20), BEGUN), Line(T(25), DONE)), True)


def test_the_annotation_has_other_lines() -> None:
    """Which are there from the start. None is a log without lines."""
    assert texts(pod(RUNNING, text="one\ntwo\n")) == ["one", "two"]
    assert texts(pod(ended(1, 2, 3), text="")) == []


def test_runs_in_place_have_logs_of_their_own() -> None:
    """The present one, the previous one, and the one that was followed when it was restarted."""
    again = pod(RUNNING, ended(10, 15, 3))
    assert texts(again) == [BEGUN]
    assert texts(again, is_previous=True) == [BEGUN, DONE]
    assert written(again, "main", began=T(10)).is_over
    paused = pod({"waiting": {"reason": "CrashLoopBackOff"}}, ended(10, 15, 3))
    assert texts(paused) == [BEGUN, DONE], "as a kubelet has it"


@pytest.mark.parametrize(
    ("of", "options", "words"),
    [
        (pod(None), {}, "is waiting to start: ContainerCreating"),
        (pod({"waiting": {"reason": "ErrImagePull"}}), {}, "image can't be pulled"),
        (pod({}), {}, "is waiting to start - no logs yet"),
        (pod(None, phase="Failed"), {}, 'container "main" in pod "p" is not available'),
        (pod(RUNNING), {"is_previous": True}, "previous terminated container"),
    ],
)
def test_no_log_yet(of: dict[str, Any], options: dict[str, Any], words: str) -> None:
    """The kubelet's words, as a bad request."""
    with pytest.raises(StatusError) as refused:
        written(of, "main", **options)
    assert refused.value.code == 400
    assert words in refused.value.message


def test_an_init_container_can_be_named() -> None:
    """And must be, where there are several."""
    several = pod(RUNNING)
    several["spec"]["initContainers"] = [{"name": "first"}]
    assert container_of(several, "first") == "first"
    with pytest.raises(StatusError, match=r"choose one of: \[first main\]"):
        container_of(several, "")


def test_lines_are_chosen_by_time_and_number() -> None:
    """``tail_lines`` of those since. Timestamps have nine digits."""
    lines = (Line(T(1), "a"), Line(T(2), "b"), Line(T(3), "c"))
    assert shown(lines, LogOptions(tail_lines=2)) == ["b", "c"]
    assert shown(lines, LogOptions(tail_lines=0)) == []
    assert shown(lines, LogOptions(tail_lines=0), is_first=False) == ["a", "b", "c"]
    assert shown(lines, LogOptions(since=T(2), tail_lines=9)) == ["b", "c"]
    assert shown(lines[:1], LogOptions(has_timestamps=True)) == ["2030-01-01T00:00:01.000000000Z a"]
