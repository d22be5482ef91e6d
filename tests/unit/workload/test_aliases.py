"""Keys of other systems beside those of fluxqueue: what is added, what wins, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput, InvalidSettings
from fluxqueue.workload import labels
from fluxqueue.workload.aliases import KUEUE, Aliases, parse_aliases
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.groups import read_membership
from fluxqueue.workload.pod_request import WORKLOAD_CLASS, choose_priority

K = "kueue.x-k8s.io/"
Obj = dict[str, Any]


def job(template: Obj | None = None, **marks: dict[str, str]) -> Obj:
    """A Job with these labels and annotations, and its template with others."""
    spec = {"template": {"metadata": template or {}, "spec": {"containers": [{"name": "c"}]}}}
    return {"kind": "Job", "metadata": {"name": "a", **marks}, "spec": spec}


def test_a_job_of_kueue_reads_as_one_of_ours() -> None:
    """Queue, class, time and level."""
    told = job(
        {"annotations": {f"{K}podset-required-topology": "cloud.provider.com/topology-rack"}},
        labels={
            f"{K}queue-name": "user-queue",
            f"{K}priority-class": "urgent",
            f"{K}max-exec-time-seconds": "3600",
        },
    )
    found = Aliases().translate(told, "team")
    wishes = read_wishes(found.obj)
    assert (wishes.queue, wishes.duration_s, wishes.priority_class) == (
        "user-queue",
        3600,
        "urgent",
    )
    assert wishes.within == "cloud.provider.com/topology-rack"
    assert found.obj["metadata"]["labels"][labels.MANAGED] == "true"
    assert told["metadata"]["labels"].keys().isdisjoint({labels.QUEUE}), "the original stays"


def test_it_is_idempotent_and_ours_win() -> None:
    """What the webhook is asked again about is not changed again."""
    told = job(labels={f"{K}queue-name": "user-queue", labels.QUEUE: "gold"})
    assert read_wishes(Aliases().translate(told, "team").obj).queue == "gold"
    once = Aliases().translate(job(labels={f"{K}queue-name": "q"}), "team").obj
    assert Aliases().translate(once, "team").obj is once


def test_a_pod_group_of_kueue() -> None:
    """The name is a label, the count an annotation."""
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "labels": {f"{K}pod-group-name": "ring", f"{K}queue-name": "q"},
            "annotations": {f"{K}pod-group-total-count": "3"},
        },
        "spec": {"containers": []},
    }
    group = read_membership(Aliases().translate(pod, "team").obj)
    assert group is not None
    assert (group.name, group.minimum, group.maximum) == ("ring", 3, 3)


def test_templates_in_lists_are_read() -> None:
    """Those of a JobSet, three levels down. What opts out stays out."""
    inner = {"metadata": {"annotations": {f"{K}podset-preferred-topology": "rack"}}, "spec": {}}
    part = {"name": "w", "template": {"spec": {"template": inner}}}
    owner = {"metadata": {"labels": {labels.MANAGED: "false", f"{K}queue-name": "q"}}}
    found = Aliases().translate({**owner, "spec": {"replicatedJobs": [part]}}, "team").obj
    (told,) = found["spec"]["replicatedJobs"]
    notes = told["template"]["spec"]["template"]["metadata"]["annotations"]
    assert notes[labels.PREFER_WITHIN] == "rack"
    assert found["metadata"]["labels"][labels.MANAGED] == "false"


@pytest.mark.parametrize(
    ("queues", "namespace", "queue"),
    [
        ("", "team", "user-queue"),
        ("user-queue=gold", "team", "gold"),
        ("*=default", "team", "default"),
        ("*=default,user-queue=gold,team/user-queue=silver", "team", "silver"),
        ("*=default,user-queue=gold,team/user-queue=silver", "other", "gold"),
    ],
)
def test_a_local_queue_means_a_fluxqueue(queues: str, namespace: str, queue: str) -> None:
    """The closest name wins."""
    told = job(labels={f"{K}queue-name": "user-queue"})
    found = parse_aliases("kueue", queues).translate(told, namespace).obj
    assert found["metadata"]["labels"][labels.QUEUE] == queue


def test_aliases_of_a_site() -> None:
    """Beside those of Kueue, or alone."""
    aliases = parse_aliases("kueue, my.org/walltime=duration,my.org/team=fluxqueue/queue", "")
    assert aliases.of(labels.QUEUE) == [f"{K}queue-name", "my.org/team"]
    found = aliases.translate(job(annotations={"my.org/walltime": "2h"}), "team").obj
    assert read_wishes(found).duration_s == 7200
    assert parse_aliases("my.org/q=queue", "").keys.keys().isdisjoint(KUEUE)
    assert not parse_aliases("none", "").keys


@pytest.mark.parametrize(
    ("keys", "queues"),
    [
        ("slurm", ""),
        ("my.org/x=speed", ""),
        ("my.org/x=managed", ""),
        ("fluxqueue/queue=priority", ""),
        ("-bad-/=queue", ""),
        ("kueue", "user-queue"),
        ("kueue", "=gold"),
    ],
)
def test_settings_that_cannot_be_read(keys: str, queues: str) -> None:
    with pytest.raises(InvalidSettings, match="write"):
        parse_aliases(keys, queues)


def test_an_error_names_what_the_author_wrote() -> None:
    """Not the key that admission added."""
    found = Aliases().translate(job(labels={f"{K}max-exec-time-seconds": "soon"}), "team")
    with pytest.raises(InvalidInput) as caught:
        read_wishes(found.obj)
    told = found.in_words_of_author(caught.value)
    assert told.where == f"metadata.annotations[{K}max-exec-time-seconds]"


def test_what_has_no_meaning_here_is_told() -> None:
    keys = (f"{K}elastic-job", f"{K}job-min-parallelism", "provreq.kueue.x-k8s.io/maxRunSeconds")
    found = Aliases().translate(job(annotations=dict.fromkeys(keys, "5")), "team")
    assert found.left_out == keys


@pytest.mark.parametrize(
    "hostile",
    [
        {"metadata": {"labels": ["x"], "annotations": 7}},
        {"metadata": {"labels": {f"{K}queue-name": 7}}},
        {"metadata": ["x"], "spec": [{"metadata": "y"}]},
        {"spec": {"metadata": {"metadata": {"labels": None}}}},
    ],
)
def test_any_types(hostile: Obj) -> None:
    """A custom resource arrives unchecked."""
    assert Aliases().translate(hostile, "team").obj == hostile


def test_nesting_is_bounded() -> None:
    deep: Obj = {"metadata": {"labels": {f"{K}queue-name": "q"}}}
    for _ in range(400):
        deep = {"a": deep}
    assert Aliases().translate(deep, "team").obj is deep


def test_classes_of_kueue_win_over_those_of_pods() -> None:
    """An unknown class does not count."""
    wishes = read_wishes(job(annotations={labels.PRIORITY_CLASS: "urgent"}))
    values = {f"{WORKLOAD_CLASS}urgent": 9, "urgent": 4, "low": 2}
    assert choose_priority({"priorityClassName": "low"}, wishes, values, 0) == (9, True)
    assert choose_priority({}, wishes, {"urgent": 4}, 0) == (4, False)
    assert choose_priority({"priorityClassName": "low"}, wishes, {"low": 2}, 0) == (2, True)
