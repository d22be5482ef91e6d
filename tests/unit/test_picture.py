"""The picture in docs/architecture.md is drawn from the code as it is."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from tests.support.wheel import ROOT


@pytest.fixture(scope="module")
def draw() -> ModuleType:
    """docs/draw.py."""
    spec = spec_from_file_location("draw", ROOT / "docs" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_of_this_house(draw: ModuleType) -> None:
    """Parts, arrows and steps. `python docs/draw.py` draws it again."""
    text = draw.DOCUMENT.read_text(encoding="utf-8")
    assert draw.drawn_again(text) == text, "python docs/draw.py"


def test_the_budget_of_a_pod_is_what_the_code_says(draw: ModuleType) -> None:
    """Table and chart. `python docs/draw.py` draws them again."""
    page = draw.BUDGET_PAGE.read_text(encoding="utf-8")
    assert draw.budget() in page, "python docs/draw.py"


def test_every_step_of_a_job_has_its_place(draw: ModuleType) -> None:
    """The document names a package for each of its ten steps."""
    text = draw.DOCUMENT.read_text(encoding="utf-8")
    placed = {int(step.split()[0]) for steps in draw.steps(text).values() for step in steps}
    assert placed == set(range(1, 11))
    for package in draw.steps(text):
        assert package in draw.packages(), f"{package} is named in a step and is no package"


def test_the_arrows_go_one_way(draw: ModuleType) -> None:
    """The deciding core reaches neither door, and nothing reaches the command line."""
    arrows = draw.arrows()
    assert not [edge for edge in arrows if edge[1] == "cli"]
    assert not [edge for edge in arrows if edge[0] == "scheduler" and edge[1] in ("db", "kube")]
