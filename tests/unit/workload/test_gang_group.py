"""The PodGroup of a placed gang."""

from __future__ import annotations

from fluxqueue.workload.gang_group import GangGroup

GANG = GangGroup("u", "sim", least=3)


def test_a_class_is_named_only_if_its_pods_name_one() -> None:
    """kube-scheduler preempts a pod by the priority of its group."""
    assert "priorityClassName" not in GANG.body()["spec"]
    assert (
        GangGroup("u", "sim", 3, priority_class="urgent").body()["spec"]["priorityClassName"]
        == "urgent"
    )


def test_only_the_group_of_its_job_is_its_own() -> None:
    """One of the same name may be made by a user, or be of another policy."""
    own = GANG.body()
    assert GANG.is_made_for(own)
    assert not GangGroup("other", "sim", 3).is_made_for(own)
    basic = {**own, "spec": {"schedulingPolicy": {"basic": {}}}}
    assert not GANG.is_made_for(basic)
    assert not GANG.is_made_for({**own, "metadata": {"name": GANG.name}})
    assert not GANG.is_made_for({"metadata": {"name": GANG.name}})


def test_only_a_wrong_size_is_corrected() -> None:
    stored = GANG.body()
    stored["metadata"]["uid"] = "of-the-group"
    assert GANG.correction(stored) is None
    assert GangGroup("u", "sim", 1).correction(stored) == {
        "metadata": {"uid": "of-the-group"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    }
