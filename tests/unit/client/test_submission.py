"""What each kind of work becomes, and what is refused before anything is created."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.client.batch.job_options import KNOWN, JobOptions
from fluxqueue.client.submission import Work, body_of, body_of_calls
from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels

pytest.importorskip("cloudpickle")


def body(work: Work, *args: Any, **options: Any) -> dict[str, Any]:
    """The object of a submission."""
    given: Any = {"image": "a", **options}
    return body_of(work, args, {}, given)


def container(made: Mapping[str, Any]) -> dict[str, Any]:
    """Its only container."""
    (one,) = made["spec"]["template"]["spec"]["containers"]
    return dict(one)


def test_a_list_is_a_command_of_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if this machine has a script of that name: that one is not meant."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text("#!/bin/bash\n#SBATCH -n 8\n")
    made = body(["train.sh", "--fast"], cpus=2, memory="1Gi")
    assert container(made)["command"] == ["train.sh", "--fast"]
    assert made["spec"]["parallelism"] == 1
    assert container(made)["resources"] == {"requests": {"cpu": "2", "memory": "1Gi"}}
    assert made["metadata"]["name"].startswith("train-sh-")


@pytest.mark.parametrize("shape", [{}, {"nodes": 2, "tasks": 4}])
def test_work_that_may_run_twice_starts_again_after_the_loss_of_a_node(
    shape: dict[str, Any],
) -> None:
    """Without the option it has no such mark, and fails."""
    for asked, mark in ((True, labels.REQUEUE), (False, None)):
        notes = body(["solve"], requeue=asked, **shape)["metadata"].get("annotations", {})
        assert notes.get(labels.ON_NODE_LOSS) == mark


def test_a_text_is_a_line_for_the_shell() -> None:
    """It is named after its first word."""
    made = body("/opt/app/solve in.dat | tee out.dat; echo $HOME")
    command = container(made)["command"]
    assert command[:2] == ["/bin/sh", "-c"]
    assert command[2].replace("$$", "$") == "/opt/app/solve in.dat | tee out.dat; echo $HOME"
    assert made["metadata"]["name"].startswith("solve-")


def test_a_path_is_a_script_with_its_directives(tmp_path: Path) -> None:
    """Options win, arguments follow, and the script's image counts if none is given."""
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH -n 4 -t 10\n#FLUX: --image=theirs\necho $1\n")
    made = body_of(script, ["one", 2], {}, {"time": timedelta(hours=1)})
    assert (made["spec"]["parallelism"], container(made)["image"]) == (1, "theirs")
    assert container(made)["resources"]["requests"]["cpu"] == "4"
    assert container(made)["command"][-2:] == ["one", "2"]
    assert made["metadata"]["annotations"][labels.DURATION] == "3600s"


def test_a_path_is_a_manifest_or_a_jobspec(tmp_path: Path) -> None:
    """By what is in the file."""
    file = tmp_path / "pod.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n")
    assert body_of(file, (), {}, {})["kind"] == "Pod"
    file.write_text("just: text\n")
    with pytest.raises(InvalidInput, match="contains no Job, Pod or jobspec"):
        body_of(file, (), {}, {})
    with pytest.raises(InvalidInput, match="no such file"):
        body_of(tmp_path / "absent.sh", (), {}, {})
    with pytest.raises(InvalidInput, match="cannot be read"):
        body_of(tmp_path / "absent.yaml", (), {}, {})


def test_a_jobspec_has_a_pod_for_each_slot() -> None:
    """Its resources are those of the pods, and gpus are devices. Two kinds of slots say nothing."""
    slot = {"type": "slot", "count": 3, "label": "w", "with": [
        {"type": "core", "count": 4}, {"type": "gpu", "count": 2}]}  # fmt: skip
    spec = {
        "version": 1, "resources": [slot],
        "tasks": [{"command": ["solve"], "slot": "w", "count": {"per_slot": 1}}], "attributes": {},
    }  # fmt: skip
    made = body(spec)
    assert (made["spec"]["completions"], container(made)["command"]) == (3, ["solve"])
    assert container(made)["resources"] == {
        "requests": {"cpu": "4000m", "nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}
    }  # fmt: skip
    kept = json.loads(made["metadata"]["annotations"][labels.JOBSPEC])
    assert kept["resources"] == [slot]
    other = {**slot, "label": "v", "count": 1, "with": [{"type": "core", "count": 1}]}
    made = body({**spec, "resources": [slot, other]})
    assert (made["spec"]["completions"], container(made)["resources"]) == (4, {})
    with pytest.raises(InvalidInput, match=r"tasks\[0\]\.command: is missing"):
        body({**spec, "tasks": []})
    with pytest.raises(InvalidInput, match="cpus: the jobspec says this"):
        body(spec, cpus=4)


def test_times_are_what_python_has() -> None:
    """Seconds, timedeltas and datetimes, rounded up, with a zone."""
    begin = datetime(2030, 1, 31, 8, tzinfo=UTC)
    notes = body(["x"], time=90.2, begin=begin, priority=-3)["metadata"]["annotations"]
    assert notes[labels.DURATION] == "91s"
    assert notes[labels.BEGIN_TIME] == "2030-01-31T08:00:00+00:00"
    assert notes[labels.PRIORITY] == "-3"
    notes = body(["x"], time="2h30m", begin=timedelta(hours=2))["metadata"]["annotations"]
    assert (notes[labels.DURATION], notes[labels.BEGIN_TIME]) == ("9000s", "+7200s")
    assert body(["x"], priority=0)["metadata"]["annotations"][labels.PRIORITY] == "0"


def test_the_default_image_is_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLUXQUEUE_IMAGE", "mine")
    assert container(body_of(["x"], (), {}, {}))["image"] == "mine"
    assert container(body_of(["x"], (), {}, {"image": "other"}))["image"] == "other"
    monkeypatch.delenv("FLUXQUEUE_IMAGE")
    with pytest.raises(InvalidInput, match="no image given"):
        body_of(["x"], (), {}, {})


def test_calls_are_the_tasks_of_an_array() -> None:
    """Which start one by one, so many at once as is said. A call has one pod."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((n,), {}) for n in range(5)]
    made = body_of_calls(abs, calls, {"image": "a"}, is_array=True, at_once=2)
    assert (made["spec"]["completions"], made["spec"]["parallelism"]) == (5, 2)
    assert made["metadata"]["annotations"][labels.GANG] == "false"
    assert made["metadata"]["name"].startswith("abs-")
    with pytest.raises(InvalidInput, match="a call runs in one pod"):
        body_of_calls(abs, calls[:1], {"image": "a", "tasks": 2})


@pytest.mark.parametrize(
    ("work", "options", "error"),
    [
        ([], {}, "work: is empty"),
        ("", {}, "work: is empty"),
        ({"a": 1}, {}, "is neither a manifest nor a jobspec"),
        ({"kind": "Job", "apiVersion": "batch/v1"}, {"queue": "x"}, "a manifest says this itself"),
        ({"kind": "Service", "apiVersion": "v1"}, {}, "is not a kind that can be queued"),
        (["x"], {"env": {"1A": "b"}}, "is not NAME=VALUE"),
        (["x"], {"env": {"A=B": "b"}}, "--env = 'A=B': has a '='"),
        (["x"], {"memory": "much"}, "--memory"),
        (["x"], {"time": "soon"}, "is not a duration"),
    ],
)
def test_what_is_refused(work: Any, options: JobOptions, error: str) -> None:
    """With the field."""
    with pytest.raises(InvalidInput, match=error.replace("[", r"\[")):
        body_of(work, (), {}, options if "kind" in work else {"image": "a", **options})


def test_arguments_belong_to_functions_and_scripts() -> None:
    with pytest.raises(InvalidInput, match="only functions and scripts take arguments"):
        body(["x"], "y")
    with pytest.raises(TypeError, match=r"'cpu' is not an option of submit\. Fix: one of array"):
        body(["x"], cpu=1)


def test_the_page_names_every_option() -> None:
    page = (Path(__file__).parents[3] / "docs" / "user" / "client.md").read_text(encoding="utf-8")
    assert [name for name in sorted(KNOWN) if f"`{name}`" not in page] == []
