"""No module imports itself through others, in none of our packages.

import-linter's contract (``make imports``) finds circles between the parts of each package. This
test also finds those through ``__init__.py``. Imports inside functions and for type checkers count.
"""

from __future__ import annotations

from pathlib import Path

import grimp
import networkx as nx
import pytest

PACKAGES = ("fluxqueue", "webhook", "fluxion", "fluxqueue_devtools", "localcluster")


def circles(*packages: str) -> list[list[str]]:
    """Return each set of modules that import one another."""
    found = grimp.build_graph(*packages, cache_dir=None)
    imports = nx.DiGraph(
        (module, other)
        for module in found.modules
        for other in found.find_modules_directly_imported_by(module)
    )
    return [sorted(one) for one in nx.strongly_connected_components(imports) if len(one) > 1]


def test_no_module_of_ours_is_in_a_circle() -> None:
    """Each is read, tested and moved alone."""
    assert circles(*PACKAGES) == []


@pytest.mark.parametrize(
    "late",
    [
        "def work():\n    from {name}.second import b\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {name}.second import b\n",
        "from .second import b\n",
    ],
)
def test_a_hidden_import_closes_a_circle(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """In a function, for type checkers only, or relative: all are found."""
    name = f"hidden_{abs(hash(request.node.name))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / name / "first.py").write_text(late.format(name=name))
    (tmp_path / name / "second.py").write_text(f"import {name}.first\nb = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert circles(name) == [[f"{name}.first", f"{name}.second"]]


def test_a_package_that_imports_its_module_is_in_a_circle_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module asks its own package for a name that the package takes from it."""
    package = tmp_path / "whole_and_part"
    package.mkdir()
    (package / "__init__.py").write_text("from whole_and_part.part import a\n")
    (package / "part.py").write_text("import whole_and_part\na = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert circles("whole_and_part") == [["whole_and_part", "whole_and_part.part"]]
