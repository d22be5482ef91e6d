"""Who a workload counts for, and how the submitter gets into templates."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput, InvalidSettings
from fluxqueue.process.cluster_accounts import CLUSTER_CONTROLLERS
from fluxqueue.process.settings import Settings
from fluxqueue.workload import labels
from fluxqueue.workload.submitter import (
    STAMPED,
    Submitters,
    parse_submitters,
    read_submitters,
)

Obj = dict[str, Any]

REPLICASETS = "system:serviceaccount:kube-system:replicaset-controller"
OPERATOR = "system:serviceaccount:lws-system:lws-controller-manager"
FLUX = "system:serviceaccount:flux-system:kustomize-controller"
KNOWN = Submitters(frozenset(CLUSTER_CONTROLLERS), frozenset({FLUX}))
DEPLOYMENT = ("apps", "Deployment")
CRON_JOB = ("batch", "CronJob")
LEADER_WORKER_SET = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet")


def noted(**annotations: str) -> Obj:
    return {"metadata": {"annotations": {f"fluxqueue/{k}": v for k, v in annotations.items()}}}


@pytest.mark.parametrize(
    ("requester", "obj", "user"),
    [
        ("alice", {}, "alice"),
        ("alice", noted(user="root"), "alice"),
        ("alice", noted(submitter="root"), "alice"),
        (REPLICASETS, noted(user="alice"), "alice"),
        (REPLICASETS, noted(submitter="alice"), REPLICASETS),
        (REPLICASETS, {"metadata": {"annotations": None}}, REPLICASETS),
        (OPERATOR, noted(user="alice"), OPERATOR),
        (FLUX, noted(submitter="alice@example.com"), "alice@example.com"),
        (FLUX, noted(user="root"), FLUX),
        (FLUX, {}, FLUX),
    ],
)
def test_a_workload_counts_for(requester: str, obj: Obj, user: str) -> None:
    assert KNOWN.submitter(requester, obj) == user


def test_without_the_policies_no_template_is_believed() -> None:
    assert Submitters().submitter(REPLICASETS, noted(user="alice")) == REPLICASETS
    obj = deployment()
    assert Submitters().with_submitter(obj, None, DEPLOYMENT, "alice") is obj


@pytest.mark.parametrize(
    "name", ["", " ", "-a", "a b", "a\nb", "a\0", "é", "a" * 254, "a,b", "'; --", "${x}"]
)
def test_a_name_that_cannot_be_a_users_is_refused_with_its_field(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        KNOWN.submitter(FLUX, noted(submitter=name))
    assert caught.value.where == "metadata.annotations[fluxqueue/submitter]"
    assert "253" in caught.value.hint
    assert KNOWN.submitter("alice", noted(submitter=name)) == "alice"


def test_another_annotation_may_be_chosen() -> None:
    known = Submitters(accounts=frozenset({FLUX}), annotation="example.org/for")
    obj = {"metadata": {"annotations": {"example.org/for": "bob", labels.SUBMITTER: "carol"}}}
    assert known.submitter(FLUX, obj) == "bob"


def deployment(user: str | None = None, **more: Any) -> Obj:
    stamp = {} if user is None else {"annotations": {labels.USER: user}}
    template = {"metadata": {"labels": {"app": "web"}, **stamp}, "spec": {}}
    return {"metadata": {"name": "web", **more}, "spec": {"replicas": 1, "template": template}}


def user_in(obj: Obj, *path: str) -> str | None:
    for name in path or ("spec", "template"):
        obj = obj[name]
    found: str | None = (obj["metadata"].get("annotations") or {}).get(labels.USER)
    return found


def stamped(obj: Obj, old: Obj | None, who: str, kind: tuple[str, str] = DEPLOYMENT) -> Obj:
    """What admission makes of an object. Once is enough."""
    changed = KNOWN.with_submitter(obj, old, kind, who)
    assert KNOWN.with_submitter(changed, old, kind, who) is changed, "reinvocation"
    result: Obj = dict(changed)
    return result


@pytest.mark.parametrize("forged", [None, "root"])
def test_the_creator_is_stamped_over_what_the_manifest_says(forged: str | None) -> None:
    assert user_in(stamped(deployment(forged), None, "alice")) == "alice"


@pytest.mark.parametrize("edit", [None, "root", "bob"])
def test_an_update_keeps_the_first_submitter(edit: str | None) -> None:
    new = deployment(edit)
    new["spec"]["template"]["spec"]["x"] = 1
    assert user_in(stamped(new, deployment("alice"), "bob")) == "alice"


def test_an_update_begins_no_rollout_for_the_stamp_alone() -> None:
    """An object of before the stamps gets one with the next change of its template."""
    scaled = deployment()
    scaled["spec"]["replicas"] = 5
    assert stamped(scaled, deployment(), "bob") == scaled
    changed = deployment()
    changed["spec"]["template"]["spec"]["x"] = 1
    assert user_in(stamped(changed, deployment(), "bob")) == "bob"
    assert user_in(stamped(deployment("root"), deployment(), "bob")) == "bob"


def test_a_cron_job_is_stamped_where_its_jobs_get_it_from() -> None:
    inner = {"metadata": {"annotations": {labels.USER: "root"}}, "spec": {}}
    made: Obj = {"metadata": {"name": "c"}, "spec": {"jobTemplate": {"spec": {"template": inner}}}}
    changed = stamped(made, None, "alice", CRON_JOB)
    assert user_in(changed, "spec", "jobTemplate") == "alice"
    assert user_in(changed, "spec", "jobTemplate", "spec", "template") is None
    # It has no pods that a change could replace, so any edit gives it one.
    assert user_in(stamped(made, made, "bob", CRON_JOB), "spec", "jobTemplate") == "bob"


@pytest.mark.parametrize(
    "who",
    [
        *(REPLICASETS, "system:kube-controller-manager"),
        *("system:serviceaccount:kube-system:unlisted", "system:kube-scheduler"),
    ],
)
def test_what_the_clusters_controllers_write_stays_as_it_is(who: str) -> None:
    """Else a controller would find that it is not what it made, and make it again."""
    for old in (None, deployment("alice")):
        assert stamped(deployment("alice"), old, who) == deployment("alice")


def test_what_an_operator_makes_stays_as_it_is() -> None:
    """As above. The policy refuses another user's name in it. A person gets the stamp."""
    made = [{"kind": "Gang", "name": "g", "controller": True}]
    obj = deployment(ownerReferences=made)
    assert stamped(obj, None, OPERATOR) == obj
    assert user_in(stamped(obj, None, "mallory")) == "mallory"
    assert user_in(stamped(deployment(), None, OPERATOR)) == OPERATOR


def leader_worker_set(*, has_leader: bool) -> Obj:
    leader = {"leaderTemplate": {"spec": {}}} if has_leader else {}
    spec = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": {"spec": {}}, **leader}}
    return {"metadata": {"name": "lws"}, "spec": spec}


@pytest.mark.parametrize("has_leader", [False, True])
def test_a_leader_worker_set_is_stamped_where_its_controller_is_named(*, has_leader: bool) -> None:
    obj = leader_worker_set(has_leader=has_leader)
    assert KNOWN.with_submitter(obj, None, LEADER_WORKER_SET, "alice") is obj
    named = Submitters(KNOWN.controllers | {OPERATOR})
    changed = named.with_submitter(obj, None, LEADER_WORKER_SET, "alice")
    templates = changed["spec"]["leaderWorkerTemplate"]
    assert ("leaderTemplate" in templates) is has_leader
    for name in {"leaderTemplate", "workerTemplate"} & templates.keys():
        assert user_in(templates, name) == "alice"


def annotated(obj: Obj, user: str) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], **noted(submitter=user)["metadata"]}}


def test_a_gitops_account_moves_an_object_by_a_new_annotation() -> None:
    first = stamped(annotated(deployment(), "alice"), None, FLUX)
    assert user_in(first) == "alice"
    moved = stamped(annotated(deployment(), "bob"), first, FLUX)
    assert user_in(moved) == "bob"
    # Without a new name the first stays, also of what a person had made.
    assert user_in(stamped(annotated(deployment(), "bob"), moved, FLUX)) == "bob"
    assert user_in(stamped(deployment(), deployment("carol"), FLUX)) == "carol"
    assert user_in(stamped(annotated(deployment(), "eve"), moved, "mallory")) == "bob"
    with pytest.raises(InvalidInput):
        KNOWN.with_submitter(annotated(deployment(), "a b"), None, DEPLOYMENT, FLUX)


def test_settings() -> None:
    assert read_submitters(Settings()).controllers == frozenset(CLUSTER_CONTROLLERS)
    found = parse_submitters(controllers=" a , b,", accounts="c", annotation="x.org/y")
    assert found == Submitters(frozenset({"a", "b"}), frozenset({"c"}), "x.org/y")
    assert parse_submitters() == Submitters()
    with pytest.raises(InvalidSettings, match="also one of the controllers"):
        parse_submitters(controllers="a", accounts="a")
    for key in ("user", "a/b/c", "A/b", "/x", "a/" + "b" * 64):
        with pytest.raises(InvalidSettings, match="annotation"):
            parse_submitters(annotation=key)


NAMES = st.sampled_from(["alice", "bob", "mallory", "root"])
PERSONS = st.sampled_from(["mallory", "system:serviceaccount:t1:mine", "system:anonymous"])
STAMPS = st.none() | NAMES
NOTES = st.dictionaries(st.sampled_from([labels.USER, labels.SUBMITTER, "a"]), NAMES)
METADATA = st.none() | st.fixed_dictionaries({}, optional={"annotations": st.none() | NOTES})


@given(kind=st.sampled_from(sorted(STAMPED)), meta=METADATA, inner=METADATA, person=PERSONS)
def test_a_person_is_never_believed_on_creation(
    kind: tuple[str, str], meta: Obj | None, inner: Obj | None, person: str
) -> None:
    """Whatever metadata say: templates name the requester, or no user at all."""
    entry = STAMPED[kind]
    obj: Obj = {"metadata": {"name": "x", **(meta or {})}, "spec": {}}
    for path in (*entry.templates, *entry.unused):
        here = obj
        for name in path:
            here = here.setdefault(name, {})
        here["metadata"] = copy.deepcopy(inner)  # as read from JSON: nothing is shared
    known = Submitters(KNOWN.controllers | {OPERATOR}, KNOWN.accounts)
    changed = known.with_submitter(obj, None, kind, person)
    for path in entry.templates:
        assert user_in(dict(changed), *path) == person
    for path in entry.unused:
        at = changed
        for name in path:
            at = at[name]
        assert labels.USER not in ((at["metadata"] or {}).get("annotations") or {})
    assert known.submitter(person, obj) == person


@given(old=STAMPS, new=STAMPS, person=PERSONS, has_changed=st.booleans())
def test_a_person_never_moves_what_another_submitted(
    old: str | None, new: str | None, person: str, *, has_changed: bool
) -> None:
    obj = deployment(new)
    if has_changed:
        obj["spec"]["template"]["spec"]["x"] = 1
    found = user_in(stamped(obj, deployment(old), person))
    assert found == (old or person) or (found is None and old is None and new is None)
