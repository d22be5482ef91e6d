"""What Kubernetes' newest minor has, against what we name and against the table of what we know.

It fails if something that we name has vanished, or if a gate, a kind or a field that concerns pods,
Jobs or scheduling is not in ``kubernetes_features.yaml``. The record is made by
``make kubernetes-record``, with the programs of a new minor.
"""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from localcluster.types.table import builtin_node

from fluxqueue.kube import resources
from fluxqueue.kube.resources import ApiResource
from tests.support.kubernetes_minors import MINORS, Feature
from tests.support.kubernetes_record import read_record

RECORD = read_record()
TABLE: dict[str, Any] = yaml.safe_load(
    (Path(__file__).parent / "kubernetes_features.yaml").read_text(encoding="utf-8")
)
CONCERNS = re.compile(
    r"Pod|Job|Workload|Sched|Gang|^DRA|Preempt|Topolog|Taint|VolumeLimit|Nominated|Container(Re|St)"
)
GROUPS = {"batch", "policy", "resource.k8s.io", "scheduling.k8s.io"}
"""Groups of the API that concern pods, Jobs or scheduling as a whole."""
KINDS = {re.sub(r"/v\w+/", "/", one) for one in RECORD["kinds"]}


def named_resources() -> dict[tuple[str, str], set[str]]:
    """The versions of each built-in kind that the product names. One of them must be served."""
    served = {one.split("/")[0] for one in RECORD["kinds"]}
    found: dict[tuple[str, str], set[str]] = {}
    for value in vars(resources).values():
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, ApiResource) and one.group in served:
                found.setdefault((one.group, one.plural), set()).add(one.version)
    return found


def test_the_record_is_of_the_newest_minor_that_the_tests_know() -> None:
    assert RECORD["minor"] == max(MINORS)


@pytest.mark.parametrize(("named", "versions"), sorted(named_resources().items()))
def test_each_kind_that_we_name_is_served(named: tuple[str, str], versions: set[str]) -> None:
    group, plural = named
    assert {f"{group}/{version}/{plural}" for version in versions} & {*RECORD["kinds"]}


def test_each_gate_and_version_that_we_name_exists() -> None:
    newest = MINORS[RECORD["minor"]]
    features = [getattr(newest, one.name) for one in fields(newest)]
    known = [one for one in features if isinstance(one, Feature)]
    assert {gate for one in known for gate in one.gates} <= {*RECORD["gates"]}
    served = {one.rpartition("/")[0] for one in RECORD["kinds"]}
    assert {version for one in known for version in one.served} <= served


def test_each_gate_that_concerns_us_is_in_the_table_and_no_other() -> None:
    assert sorted(TABLE["gates"]) == sorted(filter(CONCERNS.search, RECORD["gates"]))


def test_each_kind_that_concerns_us_is_in_the_table_and_no_other() -> None:
    assert sorted(TABLE["kinds"]) == sorted(one for one in KINDS if one.split("/")[0] in GROUPS)


def test_each_field_is_in_the_table_and_no_other() -> None:
    """Fields of pods that the page about them has are not repeated."""
    known = {"core.v1.PodSpec": set(builtin_node("PodSpec").fields)}
    for name, found in RECORD["fields"].items():
        assert sorted(TABLE["fields"][name]) == sorted({*found} - known.get(name, set())), name
    assert TABLE["fields"].keys() == RECORD["fields"].keys()


def test_each_entry_says_what_we_do() -> None:
    said = [*TABLE["gates"].values(), *TABLE["kinds"].values()]
    said += [text for one in TABLE["fields"].values() for text in one.values()]
    assert all(isinstance(text, str) and text for text in said)
