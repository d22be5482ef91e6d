"""Directed hostile inputs: each is answered in words, and within a bound of processor time.

The strategies write annotations, jobspecs and custom resources as a tenant may: nearly right texts,
numbers at the edges, series that multiply, deep trees. Every example has a deadline of processor
time of its own, so the load of the machine changes no result.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.jobspec.parse import parse_jobspec
from fluxqueue.nodepools.pool import read_node_pool
from fluxqueue.policy.queue_rules import QueueRules, read_rules, rules_or_none
from fluxqueue.policy.sharing.rules import read_sharing_rule
from fluxqueue_webhook.admit import admit
from tests.support.hostile_jobspecs import above, series, slot
from tests.support.workloads import admission_review, bare_pod, batch_job

CPU_MAX_S = 0.5
"""Processor time of one example: that of one admission (``webhook.bounded``)."""
GROUP = "jobs.converged-computing.org/v1alpha1"


@contextmanager
def deadline(what: object) -> Iterator[None]:
    """Fail if the block takes too much processor time.

    Without collections: these visit what thousands of earlier tests have left in this process.
    """
    gc.disable()
    try:
        began = time.process_time()
        yield
        took = time.process_time() - began
    finally:
        gc.enable()
    assert took < CPU_MAX_S, f"{took:.2f} s for {what!r:.2000}"


# --- annotations ---------------------------------------------------------------------------------

KEYS = (
    *("duration", "begin-time", "depends-on", "priority", "within", "prefer-within", "queue"),
    *("group-users", "pod-group", "group-size", "hold", "exclusive", "spread", "cores", "jobspec"),
    *("match-policy", "on-node-loss", "managed", "user", "jobid", "slots", "nodes"),
    *("gang", "wait", "start-timeout", "provision", "priority-class", "job-name", "account"),
    *("comment", "sets", "suspended", "author-suspended", "group", "submitter", "placement"),
    *("without-object", "node-pool", "view"),
)
PIECES = st.sampled_from(
    (
        *("1h", "12", "+", "-", ",", ":", "afterok:x", "afterany:", "now+", "1e9", "2030-01-31T"),
        *("08:00:00Z", "T", "0", ".", "h", " ", "\t", "[0-9]", "n[1-999999]", "a/b", "٣", "\u202e"),
        *(
            "1-999999999",
            "[[1-2]-3]",
            "１２",
            "NaN",
            ".inf",
            "1e309",
            "0x7f",
            "017",
            "1_000",
            "PT1H",
        ),
        *("* * * * *", "*/0 ", "2030-W01-1", "0 0 31 2 *", "1-10:2:^", "<<: [*a]", "&a [1, *a]"),
        *("version: 2030-01-01", "!!binary A", "? [a]\n: b", "--- 1\n", "%YAML 9.9\n---\n"),
        *(
            "true",
            "FALSE",
            "2147483648",
            "9" * 30,
            "{",
            "[",
            '"',
            "- a",
            "a: &x [*x]",
            "!!python/x",
        ),
    )
)
TEXTS = st.one_of(
    # One piece again and again with a wrong end: what a backtracking parser reads many times.
    st.builds(
        lambda piece, times, end: (piece * times)[:60_000] + end,
        PIECES,
        st.sampled_from((1, 2, 40, 20_000)),
        st.sampled_from(("", "x", "\u202e", "\ufeff")),
    ),
    st.lists(PIECES, max_size=8).map("".join),
    st.text(max_size=40),
)
NOTES = st.dictionaries(st.sampled_from(KEYS).map("fluxqueue/{}".format), TEXTS, max_size=5)


def _admit(obj: dict[str, Any], **request: Any) -> None:
    """Admit an object as the server does, from bytes to bytes."""
    review = admission_review(obj)
    review["request"] |= request
    # The server answers these two with 400, in words.
    with suppress(InvalidInput, orjson.JSONDecodeError):
        orjson.dumps(admit(orjson.loads(json.dumps(review))).review)


@settings(max_examples=60)
@given(NOTES, st.booleans())
def test_annotations(notes: dict[str, str], is_pod: bool) -> None:
    """On Jobs and on bare Pods, that ask to be queued."""
    meta = {"annotations": notes, "labels": {"fluxqueue/managed": "true"}}
    with deadline(notes):
        _admit(bare_pod(meta=meta) if is_pod else batch_job(meta=meta))


# --- jobspecs ------------------------------------------------------------------------------------

EDGES = st.sampled_from((0, 1, 2, 3, 7, 53, 61, 997, 2**20, 2**31 - 1, 2**31, 2**53 + 1, 2**63, -1))
COUNTS = st.one_of(EDGES, st.builds(series, EDGES, EDGES, st.sampled_from("+*^-"), EDGES))
RESOURCES = st.sampled_from(("core", "gpu", "memory", "storage", "x", "", "slot", "node"))
SLOTS = st.builds(
    lambda count, label, kind, inner: slot(count, label, {"type": kind, "count": inner}),
    COUNTS,
    st.text("abc", max_size=2),
    RESOURCES,
    COUNTS,
)
TREES = st.recursive(
    SLOTS,
    lambda inner: st.builds(
        lambda kind, count, parts: above(kind, count, *parts),
        st.sampled_from(("node", "rack", "block", "cluster", "slot")),
        COUNTS,
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=12,
)
WORDS = st.sampled_from(("hostlist", "properties", "ranks", "x"))
CONSTRAINTS = st.recursive(
    st.dictionaries(WORDS, st.lists(TEXTS.map(lambda text: text[:200]), max_size=3), max_size=2),
    lambda inner: st.dictionaries(
        st.sampled_from(("and", "or", "not")), st.lists(inner, max_size=3), max_size=2
    ),
    max_leaves=20,
)
JOBSPECS = st.builds(
    lambda trees, times, version, duration, constraints: {
        "version": version,
        "resources": [*trees, *trees[:1] * times],
        "attributes": {"system": {"duration": duration, "constraints": constraints}},
    },
    st.lists(TREES, max_size=3),
    # The same part beside itself: many kinds of slots, or too many of them.
    st.sampled_from((0, 0, 1, 20, 400)),
    st.sampled_from((1, 9999, 2, "1", None)),
    st.one_of(EDGES, st.floats(), TEXTS.map(lambda text: text[:50])),
    CONSTRAINTS,
)


@settings(max_examples=200)
@given(JOBSPECS)
def test_jobspecs(document: dict[str, Any]) -> None:
    """By themselves, as an annotation, and as a question."""
    with deadline(document):
        text = json.dumps(document)
        with suppress(InvalidInput):
            parse_jobspec(text)
    with deadline(document):
        _admit(batch_job(meta={"annotations": {"fluxqueue/jobspec": text}}))
    question = {"apiVersion": GROUP, "kind": "PlacementReview", "metadata": {}}
    with deadline(document):
        _admit({**question, "spec": {"jobspec": document}})


# --- custom resources ----------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(), st.booleans(), EDGES, st.floats(), TEXTS, st.just("\0"), st.just("\ud800")
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def _some_of(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=5)


ASKED = _some_of("fluxJob", "jobspec", "manifest", "changes", "asker", "x")
STEERED = _some_of(
    *("hold", "priority", "queue", "beginTime", "requeue", "steeredBy", "user", "workload", "x")
)


@settings(max_examples=200)
@given(
    st.one_of(st.tuples(st.just("PlacementReview"), ASKED), st.tuples(st.just("FluxJob"), STEERED)),
    VALUES,
    VALUES,
    st.sampled_from(("CREATE", "UPDATE", "DELETE")),
)
def test_custom_resources(
    asked: tuple[str, dict[str, Any]], status: Any, old: Any, operation: str
) -> None:
    """They reach admission before their schema."""
    kind, spec = asked
    body = {"apiVersion": GROUP, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    group, _, version = GROUP.partition("/")
    named = {"group": group, "version": version, "kind": kind}
    with deadline(spec):
        _admit(
            {**body, "status": status},
            kind=named,
            oldObject={**body, "spec": old},
            operation=operation,
        )


LIMITS = st.dictionaries(
    st.sampled_from(("perJob", "perUser", "total", "x")),
    st.one_of(_some_of("jobs", "nodes", "cpu", "durationSeconds"), VALUES),
    max_size=3,
)
QUEUES = st.one_of(
    VALUES,
    st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(
                (
                    *("priority", "minPriority", "maxPriority", "weight", "queueDepth"),
                    *("reservationDepth", "enabled", "started", "policy", "defaultDuration"),
                ),
                VALUES,
            ),
            "limits": st.one_of(LIMITS, VALUES),
            "fairShare": st.one_of(_some_of("enabled", "halfLife", "weight"), VALUES),
            "preemption": st.one_of(
                st.builds(
                    lambda more: {"within": "lowerPriority", **more},
                    _some_of("queues", "minRuntime", "grace"),
                ),
                VALUES,
            ),
        },
    ),
)


@settings(max_examples=300)
@given(QUEUES)
def test_queues(spec: Any) -> None:
    """A queue has rules, or is refused in words. As a stored spec it stops no other queue."""
    with deadline(spec), suppress(InvalidInput):
        read_rules("q", spec)
    found = rules_or_none("q", spec, None)
    assert found is None or isinstance(found, QueueRules)


POOL: dict[str, Any] = {
    "node": {
        "allocatable": {"cpu": "4", "memory": "8Gi"},
        "labels": {"a": "b"},
        "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
        "levels": ["rack"],
    },
    "max": 4,
    "min": 0,
    "provisioningTime": "2m",
    "pricePerHour": "3.10",
    "priority": 1,
    "idleTime": "1m",
    "provider": {"scale": {"apiVersion": "a/v1", "resource": "sets", "name": "x"}},
}
EXPRESSION = {"key": "a", "operator": "In", "values": ["b"]}
POLICY: dict[str, Any] = {
    "policy": "headroom",
    "headroom": {"cpu": "10%", "memory": "2Gi"},
    "order": 1,
    "nodeSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [EXPRESSION]},
}


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        keys = value if isinstance(value, dict) else range(len(value))
        for key in keys:
            yield from _places(value[key], (*path, key))


def _with(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    """Return a copy of ``value`` that has ``put`` at ``path``."""
    if not path:
        return put
    changed = value.copy()
    changed[path[0]] = _with(value[path[0]], path[1:], put)
    return changed


@settings(max_examples=300)
@given(st.sampled_from([*_places(POOL)]), st.sampled_from([*_places(POLICY)]), VALUES)
def test_pools_and_policies(in_pool: tuple[Any, ...], in_policy: tuple[Any, ...], put: Any) -> None:
    """A node pool and a sharing policy with one wrong value are read, or refused in words."""
    assert read_node_pool("p", POOL).most == 4
    assert read_sharing_rule("r", POLICY)
    with deadline(put), suppress(InvalidInput):
        read_node_pool("p", _with(POOL, in_pool, put))
    with deadline(put), suppress(InvalidInput):
        read_sharing_rule("r", _with(POLICY, in_policy, put))
