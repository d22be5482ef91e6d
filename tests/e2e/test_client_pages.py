"""The page about the Python client, and its notebook, do what they show."""

from __future__ import annotations

import asyncio
import doctest
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.e2e.pages import in_namespace
from tests.support.e2e.space import Space
from tests.support.host_programs import HOST, host_programs, keep_running

pytest.importorskip("cloudpickle")

DOCS = Path(__file__).parents[2] / "docs"
SESSION = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest_asyncio.fixture(loop_scope="session")
async def surroundings(
    space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[Path]:
    """A shell of a user in the test's namespace, with an image of programs that run for real."""
    if space.world.kind == "real":
        pytest.skip("a control plane without kubelets has no logs")
    await space.world.has_view()
    keep_running(monkeypatch)
    monkeypatch.setenv("KUBECONFIG", str(in_namespace(space, tmp_path)))
    monkeypatch.setenv("FLUXQUEUE_IMAGE", HOST)
    monkeypatch.chdir(DOCS.parent)
    async with host_programs(space.client, space.name):
        yield tmp_path


@pytest.mark.usefixtures("surroundings")
async def test_the_page_is_a_session() -> None:
    """Each line prints what stands below it."""
    page = DOCS / "user" / "client.md"
    text = "".join(SESSION.findall(page.read_text(encoding="utf-8")))
    session = doctest.DocTestParser().get_doctest(
        text, {"__name__": "__main__"}, page.name, None, 0
    )
    assert len(session.examples) > 20
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    result = await asyncio.to_thread(runner.run, session, out=told.append, clear_globs=False)
    client: Any = session.globs.get("client")
    await asyncio.to_thread(client.close)
    assert result.failed == 0, "".join(told)


@pytest.mark.usefixtures("surroundings")
async def test_the_notebook_runs_from_its_first_cell_to_its_last() -> None:
    """In one namespace, as a kernel does. Each cell that ends with a value shows it as HTML."""
    notebook = json.loads((DOCS / "examples" / "client.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(one["source"]) for one in notebook["cells"] if one["cell_type"] == "code"]
    shown = await asyncio.to_thread(run_cells, cells)
    assert any("<table>" in one for one in shown)


def run_cells(cells: list[str]) -> list[str]:
    """Run cells in one namespace. Return the HTML of their last values."""
    import ast

    names: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(cells):
        tree = ast.parse(cell, f"<cell {number}>")
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
            if hasattr(value, "_repr_html_"):
                shown.append(value._repr_html_())
    return shown
