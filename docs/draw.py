"""Draws the house in docs/architecture.md: parts, arrows, the life of a Job.

    python docs/draw.py

Arrows are the imports between our packages, those left out that others imply; the numbers in a
part are the steps of a batch Job's life that the document names there. tests/unit/test_picture.py
draws it again and compares.
"""

from __future__ import annotations

import re
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
    cli -. "up, demo, tests" .-> localcluster[[localcluster/]]
    localcluster -. is one .-> api
"""
"""What no import shows: who talks to whom beyond our processes."""

_STEP = re.compile(r"^(\d)\. \*\*(\w+)\*\* – (.*?)\.(?:\s|$)", re.MULTILINE)
_PLACE = re.compile(r"`(?:fluxqueue/)?(\w+)/")


def packages() -> list[str]:
    """Our packages, by their last names."""
    folders = [path.parent for path in (ROOT / "fluxqueue").glob("*/__init__.py")]
    return [*sorted(folder.name for folder in folders), "webhook"]


def arrows() -> list[tuple[str, str]]:
    """(importer, imported), without what follows from other arrows."""
    graph = grimp.build_graph("fluxqueue", "webhook")
    names = {name: name if name == "webhook" else f"fluxqueue.{name}" for name in packages()}
    whole = nx.DiGraph(
        (one, other)
        for one in names
        for other in names
        if one != other
        and graph.direct_import_exists(importer=names[one], imported=names[other], as_packages=True)
    )
    return sorted(nx.transitive_reduction(whole).edges)


def steps(text: str) -> dict[str, list[str]]:
    """Package to the steps of a batch Job's life that pass through it."""
    found: dict[str, list[str]] = {}
    for number, name, places in _STEP.findall(text):
        for package in dict.fromkeys(_PLACE.findall(places)):
            found.setdefault(package, []).append(f"{number} {name.lower()}")
    return found


def picture(text: str) -> str:
    """The picture for the document ``text``, as a Mermaid block."""
    edges = arrows()
    inside = steps(text)
    drawn = sorted({name for edge in edges for name in edge})
    lines = []
    for name in drawn:
        label = "<br/>".join([f"<b>{name}</b>", *inside.get(name, ())])
        lines.append(f'    {_identifier(name)}["{label}"]\n')
    lines += [f"    {_identifier(one)} --> {_identifier(other)}\n" for one, other in edges]
    return f"```mermaid\nflowchart TD\n{OUTSIDE}{''.join(lines)}```\n"


def _identifier(name: str) -> str:
    """A package as a node of the picture; Mermaid takes ``graph`` for a word of its own."""
    return f"{name}_" if name == "graph" else name


def drawn_again(text: str) -> str:
    """The document with its picture as it ought to be."""
    before, rest = text.split(START)
    return before + START + picture(text) + END + rest.split(END)[1]


if __name__ == "__main__":
    DOCUMENT.write_text(drawn_again(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
