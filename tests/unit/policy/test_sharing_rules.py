"""Specs of ResourceSharingPolicies: read, refused with a way out, and those of other packages."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.policy.sharing.node_grants import RULES_MAX, NodeSharing
from fluxqueue.policy.sharing.rules import read_sharing_rule
from tests.support.packages import install_into

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "docs" / "examples" / "night-policy"
NODE = NodeFact("n", "u", {CPU: 16_000, MEMORY: 64 << 30}, {"pool": "hpc"})
THEIRS = ForeignPod("u", "theirs", "web", "n", {CPU: 8000})
HOUR_S, DAY_S = 3600, 86_400


@pytest.mark.parametrize(
    ("spec", "now", "at_best"),
    [
        ({"policy": "subtract"}, 8000, 16_000),
        ({"policy": "headroom", "headroom": {"cpu": 2}}, 6000, 14_000),
        ({"policy": "headroom", "headroom": {"cpu": "12.5%"}}, 6000, 14_000),
        ({"policy": "headroom", "headroom": {"cpu": "100%"}}, 0, 0),
        ({"policy": "partition", "partition": {"cpu": "50%"}}, 8000, 8000),
        ({"policy": "partition", "partition": {"cpu": "75%"}}, 8000, 12_000),
        ({"policy": "partition", "partition": {"cpu": "500m"}}, 500, 500),
        ({"policy": "dedicated"}, 8000, 16_000),
    ],
)
def test_what_a_spec_gives_beside_eight_cores(spec: dict[str, Any], now: int, at_best: int) -> None:
    sharing = NodeSharing()
    sharing.set_rules([read_sharing_rule("p", spec)], {})
    found = sharing.grant(NODE, [THEIRS], 0)
    assert found is not None
    assert (found.now[CPU], found.at_best[CPU]) == (now, at_best)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (7, "spec: 7 is no mapping"),
        ({}, "spec.policy: None is no installed sharing policy"),
        ({"policy": "nothing-like-it"}, "one of dedicated, headroom, partition, subtract"),
        ({"policy": ["subtract"]}, "spec.policy"),
        ({"policy": "headroom"}, "spec.headroom"),
        ({"policy": "headroom", "headroom": {}}, "spec.headroom"),
        ({"policy": "headroom", "headroom": {"cpu": "-1"}}, "spec.headroom.cpu"),
        ({"policy": "headroom", "headroom": {"cpu": "100.001%"}}, "more than all"),
        ({"policy": "headroom", "headroom": {"cpu": "%"}}, "spec.headroom.cpu"),
        ({"policy": "headroom", "headroom": {"cpu": "1e9%"}}, "more than all"),
        ({"policy": "partition", "partition": {"cpu": True}}, "spec.partition.cpu"),
        ({"policy": "partition", "partition": {str(n): 1 for n in range(65)}}, "1 to 64"),
        ({"policy": "subtract", "subtract": {"cpu": 1}}, "spec.subtract: takes no parameters"),
        ({"policy": "subtract", "order": -1}, "spec.order"),
        ({"policy": "subtract", "order": True}, "spec.order"),
        ({"policy": "subtract", "nodeSelector": []}, "spec.nodeSelector"),
        ({"policy": "subtract", "nodeSelector": {"matchLabels": {"a": 1}}}, "matchLabels"),
        ({"policy": "subtract", "nodeSelector": {"matchExpressions": "x"}}, "matchExpressions"),
        (
            {"policy": "subtract", "nodeSelector": {"matchExpressions": [{"key": "a"}]}},
            "spec.nodeSelector.matchExpressions[0]",
        ),
        (
            {
                "policy": "subtract",
                "nodeSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]},
            },
            "In, NotIn, Exists, DoesNotExist",
        ),
    ],
)
def test_a_spec_that_cannot_be_used_is_refused_in_words(spec: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_sharing_rule("p", spec)
    assert said in str(refused.value)


def test_no_more_policies_than_nodes_can_be_compared_with() -> None:
    """The last ones by order are set aside, with the reason."""
    sharing = NodeSharing()
    rules = [
        read_sharing_rule(f"p{n:03}", {"policy": "subtract", "order": n})
        for n in range(RULES_MAX + 2)
    ]
    sharing.set_rules(reversed(rules), {"bad": "cannot be read"})
    assert len(sharing.rules) == RULES_MAX
    assert set(sharing.set_aside) == {"p100", "p101", "bad"}
    assert "100 policies come before it" in sharing.set_aside["p101"]


# --- policies of other packages ------------------------------------------------------------------


def test_the_example_package_is_installed_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/examples/night-policy, built and installed by pip: found by its entry point."""
    spec = {"policy": "nights", "parameters": {"from": 20, "to": 6}}
    with pytest.raises(InvalidInput, match="no installed sharing policy"):
        read_sharing_rule("p", spec)
    monkeypatch.syspath_prepend(str(install_into(EXAMPLE, tmp_path / "site")))
    sharing = NodeSharing()
    sharing.set_rules([read_sharing_rule("p", spec)], {})
    for hour, cpu, change in ((12, 0, 20), (20, 8000, 30), (23, 8000, 30), (29, 8000, 30)):
        found = sharing.grant(NODE, [THEIRS], DAY_S + hour * HOUR_S + 90)
        assert found is not None
        assert (found.now[CPU], found.at_best[CPU]) == (cpu, 16_000), hour
        assert found.again_at == DAY_S + change * HOUR_S
        assert found.why == "gives nodes to jobs from 20:00 to 6:00 UTC"
    with pytest.raises(InvalidInput, match=r"spec\.parameters\.from: 99 is no hour"):
        read_sharing_rule("p", spec | {"parameters": {"from": 99, "to": 6}})
    monkeypatch.delitem(sys.modules, "fluxqueue_night_policy")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("make = 1", "TypeError"),
        ("def make(parameters): return object()", "has no method grant"),
        ("def make(parameters): return parameters['x']", "KeyError"),
        ("def other(parameters): ...", "AttributeError"),
        ("def", "SyntaxError"),
    ],
)
def test_a_package_that_cannot_be_used_is_refused_in_words(
    code: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory with what pip writes, and a module that fails in many ways."""
    (tmp_path / "odd_policy.py").write_text(code)
    meta = tmp_path / "odd-1.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1\n")
    (meta / "entry_points.txt").write_text("[fluxqueue.sharing_policies]\nodd = odd_policy:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd_policy", raising=False)
    with pytest.raises(InvalidInput) as refused:
        read_sharing_rule("p", {"policy": "odd"})
    assert said in str(refused.value)
    sys.modules.pop("odd_policy", None)
