"""The table of built-in types is what the supported version's OpenAPI and the overlay make."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from localcluster.server.discovery import VERSION as SERVED
from localcluster.types.table import builtin_node

TOOL = Path(__file__).resolve().parents[3] / "tools" / "make_types.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The script, as a module."""
    spec = spec_from_file_location("make_types", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["make_types"] = module
    spec.loader.exec_module(module)
    return module


def test_the_table_is_made_of_openapi_and_the_overlay(tool: ModuleType) -> None:
    """It is not edited by hand, and the overlay names only what is there."""
    text, unused = tool.make_table()
    stored = (tool.FOLDER / "table.txt").read_text(encoding="utf-8")
    assert text == stored, "make table"
    assert not unused


def test_it_is_of_the_version_that_is_served(tool: ModuleType) -> None:
    """/version and the fields are of one mind."""
    assert f"{SERVED['major']}.{SERVED['minor']}" == tool.VERSION


@pytest.mark.parametrize(
    ("kind", "path", "form"),
    [
        ("Pod", ("spec", "terminationGracePeriodSeconds"), "int64"),
        ("Pod", ("spec", "overhead", "cpu"), "quantity"),
        ("Pod", ("metadata", "creationTimestamp"), "time"),
        ("Lease", ("spec", "renewTime"), "microtime"),
        ("Secret", ("data", "key"), "bytes"),
        ("Job", ("spec", "backoffLimit"), "int32"),
        ("PodDisruptionBudget", ("spec", "minAvailable"), "int-or-string"),
    ],
)
def test_some_fields_have_the_types_that_everybody_knows(
    kind: str, path: tuple[str, ...], form: str
) -> None:
    """An independent look at the result: widths, quantities, times."""
    node = builtin_node(kind)
    for key in path:
        node = node.child(key)
    assert node.go_type == form


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("Deployment", ("spec", "strategy", "rollingUpdate", "maxUnavailable")),
        ("Deployment", ("spec", "strategy", "rollingUpdate", "maxSurge")),
        ("DaemonSet", ("spec", "updateStrategy", "rollingUpdate", "maxUnavailable")),
        ("StatefulSet", ("spec", "updateStrategy", "rollingUpdate", "maxUnavailable")),
        ("PodDisruptionBudget", ("spec", "maxUnavailable")),
        ("PodDisruptionBudget", ("spec", "minAvailable")),
    ],
)
def test_a_zero_that_means_none_is_kept(kind: str, path: tuple[str, ...]) -> None:
    """OpenAPI does not say so. Left out it would be given its default, 25% or 1."""
    node = builtin_node(kind)
    for key in path:
        node = node.child(key)
    assert node.keeps_zero


def test_fields_of_a_later_version_are_unknown() -> None:
    """1.37 has ``spec.volumes[].configMap.defaultUser``. 1.36 warns of it."""
    volumes = builtin_node("Pod").child("spec").child("volumes")
    assert volumes.items is not None
    assert "defaultMode" in volumes.items.child("configMap").fields
    assert "defaultUser" not in volumes.items.child("configMap").fields
