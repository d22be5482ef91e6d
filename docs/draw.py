"""Draw the pictures of the documents from the code.

    python docs/draw.py

In docs/architecture.md: the packages that a batch Job passes through. An arrow is an import. Arrows
that follow from other arrows are left out. The numbers in a package are the steps of a batch Job's
life that the document names there. Packages without a step are left out, except the door to the
cluster.

In docs/developer/performance.md: the latency budget of one pod, from
``fluxqueue/process/pacing.py``.
tests/unit/test_picture.py draws both again and compares.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

import grimp
import networkx as nx

from fluxqueue.process.pacing import BUDGET

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
BUDGET_PAGE = ROOT / "docs" / "developer" / "performance.md"
START, END = "<!-- drawn by docs/draw.py -->\n", "<!-- end of the picture -->"

OUTSIDE = """\
    user([kubectl apply]) --> api[(Kubernetes API)]
    api -- "admission (1)" --> webhook
    kube <--> api
    db <--> postgres[(Postgres)]
"""
"""What no import shows: the connections to the outside."""

DOORS = frozenset({"kube"})
"""Packages that are drawn although no step names them."""

_STEP = re.compile(r"^(\d+)\. \*\*([\w ]+)\*\* – (.*?)\.(?:\s|$)", re.MULTILINE)
_PLACE = re.compile(r"`(?:fluxqueue/)?(\w+)/")


def packages() -> list[str]:
    """Return our packages, by their last names."""
    folders = [path.parent for path in (ROOT / "fluxqueue").glob("*/__init__.py")]
    return [*sorted(folder.name for folder in folders), "webhook"]


def arrows(drawn: Container[str] | None = None) -> list[tuple[str, str]]:
    """Return (importer, imported) between packages, without what follows from other arrows.

    ``drawn``: the packages to keep. None keeps all. A path through others becomes one arrow.
    """
    graph = grimp.build_graph("fluxqueue", "fluxqueue_webhook")
    names = {name: f"fluxqueue.{name}" for name in packages()} | {"webhook": "fluxqueue_webhook"}
    whole = nx.DiGraph(
        (one, other)
        for one in names
        for other in names
        if one != other
        and graph.direct_import_exists(importer=names[one], imported=names[other], as_packages=True)
    )
    closed = nx.transitive_closure_dag(whole)
    kept = closed.subgraph(name for name in whole if drawn is None or name in drawn)
    return sorted(nx.transitive_reduction(kept).edges)


def steps(text: str) -> dict[str, list[str]]:
    """Return the steps of a batch Job's life that pass through each package."""
    found: dict[str, list[str]] = {}
    for number, name, places in _STEP.findall(text):
        for package in dict.fromkeys(_PLACE.findall(places)):
            found.setdefault(package, []).append(f"{number} {name.lower()}")
    return found


def picture(text: str) -> str:
    """Draw the picture for the document ``text``, as a Mermaid block."""
    inside = steps(text)
    drawn = sorted({*inside, *DOORS})
    edges = arrows(drawn)
    lines = []
    for name in drawn:
        label = "<br/>".join([f"<b>{name}</b>", *inside.get(name, ())])
        lines.append(f'    {_identifier(name)}["{label}"]\n')
    lines += [f"    {_identifier(one)} --> {_identifier(other)}\n" for one, other in edges]
    return f"```mermaid\nflowchart TD\n{OUTSIDE}{''.join(lines)}```\n"


def _identifier(name: str) -> str:
    """Name a package in the picture. ``graph`` is a word of Mermaid."""
    return f"{name}_" if name == "graph" else name


def budget() -> str:
    """Return the latency budget of one pod: a table, and the idle pauses as a chart."""
    lines = ["| Step | Idle system | Under load | Constant |\n", "|---|---|---|---|\n"]
    lines += [f"| {one.name} | {one.idle} | {one.busy} | {one.constant} |\n" for one in BUDGET]
    chart = ["gantt\n", "    dateFormat x\n", "    axisFormat %L ms\n"]
    at_ms = 0
    for one in BUDGET:
        end_ms = at_ms + max(1, round(one.idle_ms))
        kind = "active" if one.idle_ms else "milestone"
        chart.append(f"    {one.name.replace('`', '')} :{kind}, {at_ms}, {end_ms}\n")
        at_ms = end_ms
    return f"{''.join(lines)}\n```mermaid\n{''.join(chart)}```\n"


def drawn_again(text: str) -> str:
    """Return the document of the architecture with its picture drawn again."""
    return _replaced(text, picture(text))


def _replaced(text: str, drawn: str) -> str:
    before, rest = text.split(START)
    return before + START + drawn + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(drawn_again(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    page = BUDGET_PAGE.read_text(encoding="utf-8")
    BUDGET_PAGE.write_text(_replaced(page, budget()), encoding="utf-8")
