"""Draw the picture in docs/architecture.md: the packages that a batch Job passes through.

    python docs/draw.py

An arrow is an import. Arrows that follow from other arrows are left out. The numbers in a package
are the steps of a batch Job's life that the document names there. Packages without a step are left
out, except the door to the cluster. tests/unit/test_picture.py draws it again and compares.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
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

    ``drawn``: the packages to keep; None keeps all. A path through others becomes one arrow.
    """
    graph = grimp.build_graph("fluxqueue", "webhook")
    names = {name: name if name == "webhook" else f"fluxqueue.{name}" for name in packages()}
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


def drawn_again(text: str) -> str:
    """Return the document with its picture drawn again."""
    before, rest = text.split(START)
    return before + START + picture(text) + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(drawn_again(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
