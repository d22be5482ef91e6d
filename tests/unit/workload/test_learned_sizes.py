"""What pods ask for beyond their template, learned from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.controller.observing.read_workload import WorkloadReader, trim_pod
from fluxqueue.workload.learned_sizes import LearnedSize, LearnedSizes, template_key, with_extra
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.site import Site
from fluxqueue.workload.surroundings import changes_pods

EARLY, LATE = "2030-01-01T00:00:00Z", "2030-01-01T00:00:09Z"


def job(cpu: str | None = "2", *, namespace: str = "ns", **template: Any) -> dict[str, Any]:
    """A stored BatchJob of two pods."""
    resources = {} if cpu is None else {"requests": {"cpu": cpu}}
    spec = {"containers": [{"name": "c", "image": "app", "resources": resources}]}
    meta = {"labels": {"controller-uid": "u", "app": "x"}}
    return {
        "kind": "Job",
        "metadata": {
            "uid": "u",
            "name": "train",
            "namespace": namespace,
            "creationTimestamp": EARLY,
        },
        "spec": {
            "parallelism": 2,
            "completions": 2,
            "template": {"metadata": meta, "spec": {**spec, **template}},
        },
    }


def pod(*requests: dict[str, str], created: str = LATE, **status: Any) -> dict[str, Any]:
    """A pod as admission has made it, with these containers, as the informer keeps it."""
    meta = {
        "uid": "p",
        "name": "train-x",
        "namespace": "ns",
        "creationTimestamp": created,
        "labels": {"fluxqueue/managed": "true"},
    }
    containers = [
        {"name": f"c{number}", "resources": {"requests": one}}
        for number, one in enumerate(requests)
    ]
    return trim_pod({"metadata": meta, "spec": {"containers": containers}, "status": status})


def learned(*pods: dict[str, Any], of: dict[str, Any] | None = None) -> LearnedSizes:
    """What these pods teach about a template."""
    sizes = LearnedSizes()
    sizes.learn(of or job(), pods)
    return sizes


def test_a_sidecar_is_learned_for_all_jobs_of_the_template() -> None:
    """Names, commands and marks of ours do not count. The namespace and the image do."""
    sizes = learned(pod({"cpu": "2"}, {"cpu": "500m", "memory": "1Gi"}))
    assert sizes.of(job()) == (("cpu", 500), ("memory", 2**30))
    other = job()
    other["metadata"]["name"] = "other"
    other["spec"]["template"]["metadata"]["labels"]["controller-uid"] = "another"
    other["spec"]["template"]["metadata"]["annotations"] = {"fluxqueue/duration": "9m"}
    other["spec"]["template"]["spec"]["containers"][0]["command"] = ["sleep"]
    assert sizes.of(other) == sizes.of(job())
    assert sizes.of(job(namespace="another")) == ()
    assert sizes.of(job("3")) == ()
    assert sizes.of(job(serviceAccountName="robot")) == ()


@pytest.mark.parametrize(
    "one",
    [
        pod({"cpu": "2"}),
        pod({"cpu": "1"}),
        pod({"cpu": "9"}, phase="Running"),
        pod({"cpu": "9"}, phase="Failed"),
    ],
    ids=["as the template", "smaller", "resized", "over"],
)
def test_only_larger_pods_that_have_not_started_teach(one: dict[str, Any]) -> None:
    """A running pod may have been resized, and a slot is never too large."""
    sizes = learned(one)
    assert sizes.of(job()) == ()
    assert sizes.news == []


def test_a_template_without_requests_learns_what_a_limit_range_adds() -> None:
    """Its slot had the default size, which was too small."""
    sizes = learned(pod({"cpu": "4"}), of=job(None))
    assert sizes.of(job(None)) == (("cpu", 4000),)


def test_the_newest_pod_is_right() -> None:
    """An injector may be removed, or may ask for more."""
    sizes = learned(pod({"cpu": "3"}, created=LATE))
    sizes.learn(job(), [pod({"cpu": "5"}, created=EARLY)])
    assert sizes.of(job()) == (("cpu", 1000),)
    sizes.learn(job(), [pod({"cpu": "2"}, created=LATE)])
    assert sizes.of(job()) == ()


def test_what_is_saved_is_known_to_the_next_process() -> None:
    """News are kept until they are in rows."""
    sizes = learned(pod({"cpu": "3"}))
    (news,) = sizes.news
    assert news == LearnedSize("ns", template_key(job()), (("cpu", 1000),), LATE)
    sizes.saved([replace(news, learned_at=EARLY)])
    assert sizes.news == [news], "another version of it"
    sizes.saved([news])
    assert sizes.news == []
    fresh = LearnedSizes()
    fresh.know([news])
    assert fresh.of(job()) == news.extra
    assert fresh.news == []


def test_extra_is_added_as_overhead() -> None:
    """Every reader of a pod spec counts it, beside what it has already."""
    body = job(overhead={"cpu": "250m", "memory": "1Mi"})
    grown = with_extra(body, (("cpu", 500), ("nvidia.com/gpu", 1)))
    asked = raw_request(grown["spec"]["template"]["spec"])
    assert asked == {"cpu": 2750, "memory": 2**20, "nvidia.com/gpu": 1, "pods": 1}
    assert body["spec"]["template"]["spec"]["overhead"] == {"cpu": "250m", "memory": "1Mi"}
    assert with_extra(body, ()) is body


def test_a_workload_is_read_at_its_size() -> None:
    """And says that its pods have grown, as long as none of them is bound."""
    reader = WorkloadReader(Site())
    first = reader.see(job(), [], "f", {})
    assert first.growth == ""
    grown = reader.see(job(), [pod({"cpu": "2"}, {"cpu": "1"})], "f", {})
    assert grown.growth == "1 cpu"
    assert grown.request != first.request
    bound = pod({"cpu": "2"}, {"cpu": "1"})
    bound["spec"]["nodeName"] = "n0"
    again = reader.see(job(), [bound], "f", {})
    assert (again.growth, again.request) == ("", grown.request)
    later = reader.see(job(), [], "f", {})
    assert (later.growth, later.request) == ("", grown.request)


def test_what_the_author_wrote_is_kept_beside_the_request() -> None:
    """Only an edit by the author may take a released Job back."""
    reader = WorkloadReader(Site())
    plain = reader.see(job(), [], "f", {})
    assert plain.authored is None
    grown = reader.see(job(), [pod({"cpu": "2"}, {"cpu": "1"})], "f", {})
    assert grown.request != plain.request
    assert grown.authored == plain.request


def test_where_others_change_pods_the_first_of_a_template_have_a_gate() -> None:
    """The release in the template binds pods before they can be compared with their slots."""
    single = job()
    single["spec"] |= {"parallelism": 1, "completions": 1, "suspend": True}
    changed = [True]
    reader = WorkloadReader(Site(), are_pods_changed=lambda: changed[0])
    assert not reader.see(single, [], "f", {}).facts.is_pinnable
    changed[0] = False
    assert reader.see(single, [], "f", {}).facts.is_pinnable
    changed[0] = True
    # Its first pod is as large as its template: that is remembered, too.
    reader.see(single, [pod({"cpu": "2"})], "f", {})
    assert [one.extra for one in reader.sizes.news] == [()]
    assert reader.see(single, [], "f", {}).facts.is_pinnable
    # What is released already stays as it is.
    other = job(serviceAccountName="other")
    other["spec"] |= {"parallelism": 1, "completions": 1, "suspend": True}
    assert not reader.see(other, [], "f", {}).facts.is_pinnable
    assert reader.see(other, [pod({"cpu": "2"})], "f", {}).facts.is_pinnable


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, True),
        ({"resources": ["*"], "operations": ["*"], "apiGroups": ["*"]}, True),
        ({"resources": ["pods/binding"]}, False),
        ({"operations": ["UPDATE"]}, False),
        ({"apiGroups": ["batch"], "resources": ["jobs"]}, False),
    ],
)
def test_webhooks_of_others_that_may_change_pods(rule: dict[str, Any], expected: bool) -> None:
    """Our own change no size."""
    whole = {"apiGroups": [""], "operations": ["CREATE"], "resources": ["pods"], **rule}
    theirs = {"webhooks": [{"name": "inject.example.org", "rules": [whole]}]}
    assert changes_pods(theirs) is expected
    ours = {"webhooks": [{"name": "pods.fluxqueue.converged-computing.org", "rules": [whole]}]}
    assert not changes_pods(ours)
