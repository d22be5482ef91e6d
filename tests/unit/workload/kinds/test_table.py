"""The table of kinds: who claims a pod, what rows say, and that no code compares kinds by name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import kinds
from fluxqueue.workload.kinds.pod_group import POD_GROUP
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.kinds.table import KINDS, find_kind, kind_named, kind_of, workload_uid
from tests.support.workloads import bare_pod, batch_job, owner

ROOT = Path(kinds.__file__).resolve().parents[3]
NAMES = {kind.name for kind in KINDS}


def test_an_object_finds_its_entry_with_and_without_its_kind() -> None:
    for workload in (batch_job(), bare_pod()):
        unnamed = {key: value for key, value in workload.items() if key != "kind"}
        assert kind_of(workload) is kind_of(unnamed) is kind_named(workload["kind"])
        assert kind_of(workload).api_version == workload["apiVersion"]


def test_a_kind_is_known_by_its_group_too() -> None:
    assert find_kind("batch", "Job") is kind_named("Job")
    assert find_kind("batch.volcano.sh", "Job") is None
    assert find_kind("apps", "DaemonSet") is None


def test_only_these_can_be_put_back_into_the_queue() -> None:
    """Groups of pods, sets among them, and bare pods cannot be suspended."""
    suspended = {kind.name for kind in KINDS if kind.can_be_suspended}
    assert suspended == {"Job", SUSPENDED_OWNER.name}
    assert NAMES - suspended == {"Pod", POD_GROUP.name}


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(InvalidInput, match=r"known: .*Job"):
        kind_named("Widget")


def test_a_pod_belongs_to_who_makes_it_else_to_itself() -> None:
    made = bare_pod(meta={"ownerReferences": [owner("Job", "pi")]})
    assert workload_uid(made) == "uid-pi"
    assert workload_uid(bare_pod()) == "uid-solo"
    others = owner("Job", "v") | {"apiVersion": "batch.volcano.sh/v1alpha1"}
    assert workload_uid(bare_pod(meta={"ownerReferences": [others]})) == "uid-solo"


def test_nobody_compares_kinds_by_name() -> None:
    """Code that needs to know asks the entry. What SQL needs is a column that the entry fills."""
    assert list(_comparisons()) == []


def _comparisons() -> Iterator[str]:
    table = Path(kinds.__file__).parent
    for path in [*ROOT.glob("fluxqueue/**/*.py"), *ROOT.glob("webhook/**/*.py")]:
        if table in path.parents:
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare) and _names_kind(node):
                yield f"{path.relative_to(ROOT)}:{node.lineno}"
    for path in [*ROOT.glob("fluxqueue/**/*.py"), *ROOT.glob("fluxqueue/**/*.sql")]:
        for found in re.finditer(r"workload_kind\s*(=|<>|IN\b)\s*\(?'", path.read_text()):
            yield f"{path.relative_to(ROOT)}: {found.group()}"


def _names_kind(node: ast.Compare) -> bool:
    return any(
        (isinstance(part, ast.Constant) and part.value in NAMES)
        or (isinstance(part, ast.Attribute) and part.attr == "name" and _is_entry(part.value))
        for operand in (node.left, *node.comparators)
        for part in ast.walk(operand)
    )


def _is_entry(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.isupper()
