"""Writers: a resource set as text, byte for byte as Fluxion's match writers produce it.

Formats are ``simple``, ``pretty_simple``, ``jgf``, ``jgf_shorthand``, ``rlite``, ``rv1``,
``rv1_nosched`` and ``rv1_shorthand`` (RFC 4, RFC 20, flux-sched, resource/writers). The scheduler
calls it for R, and so does ``resource-query``. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from fluxion.ledger.resource_set import ResourceSet
from fluxion.model.shapes import BlockClass, iterate_bits
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob import hostlist
from fluxqueue.jobspec import idset

SHORTHAND_WRITER = "fluxion:jgf_shorthand"
MAX_TEXTS = 512
_REDUCED = ("core", "gpu")
_GATHERED = ("node", "storage_node")


def write(resources: ResourceSet, format_name: str) -> str:
    """Return ``resources`` as text with a line break at its end.

    The text is empty if the format shows nothing.

    Raises
    ------
    InvalidSettings
        ``format_name`` is not in ``FORMATS``.
    """
    writer = FORMATS.get(format_name)
    if writer is None:
        raise InvalidSettings(
            f"unknown format {format_name!r}", where="match-format", hint=", ".join(FORMATS)
        )
    return writer(resources)


def _lines(resources: ResourceSet, exclusive: str, shared: str) -> list[str]:
    graph, shares = resources.graph, resources.booking.shares
    depths: dict[int, str] = {-1: "      "}
    lines: list[str] = []
    for v, is_exclusive in resources.vertices():
        above = graph.parent[v]
        prefix = depths.get(above)
        if prefix is None:
            prefix = depths[above] = "      " + "---" * graph.depth(above)
        share = shares.get(v)
        mode = exclusive if is_exclusive or share else shared
        lines.append(f"{prefix}---{graph.name(v)}[{share or graph.size[v]}:{mode}]\n")
    return lines


def write_simple(resources: ResourceSet) -> str:
    """Write one line per vertex, children first: ``      ---------node0[1:x]``."""
    return "".join(_lines(resources, "x", "s"))


def write_pretty_simple(resources: ResourceSet) -> str:
    """Write as ``simple``, but parents first and in words."""
    return "".join(reversed(_lines(resources, "exclusive", "shared")))


def jgf_vertex(
    graph: ResourceGraph, v: int, is_exclusive: bool, resources: ResourceSet | None = None
) -> dict[str, Any]:
    """Return one element of ``graph.nodes``. Defaults are left out as in Fluxion."""
    kind, basename, number = graph.type_name(v), graph.basename(v), graph.id[v]
    meta: dict[str, Any] = {"type": kind}
    if basename != kind:
        meta["basename"] = basename
    name = graph.name(v)
    if name != f"{basename}{number}":
        meta["name"] = name
    meta["id"] = number
    meta["rank"] = graph.rank[v]
    properties = graph.properties.get(v)
    if properties:
        meta["properties"] = dict(sorted(properties.items()))
    if v in graph.units:
        meta["unit"] = graph.units[v]
    share = resources.booking.shares.get(v) if resources is not None else None
    if is_exclusive or share:
        meta["exclusive"] = True
    if graph.size[v] != 1:
        meta["size"] = graph.size[v]
    meta["paths"] = {"containment": graph.path(v), **graph.other_paths.get(v, {})}
    if graph.type_of[v] in graph.consumable:
        meta["consumable"] = True
        if share:
            meta["share"] = share
    if resources is not None:
        label = resources.labels.get(graph.type_of[v])
        if label:
            meta["ephemeral"] = {"label": label}
        extra = resources.extras.get(v)
        if extra:
            meta["agfilter"] = dict(sorted(extra.items()))
    return {"id": str(graph.uniq_id[v]), "metadata": meta}


def jgf_document(resources: ResourceSet, *, is_shorthand: bool) -> dict[str, Any] | None:
    """Return the JGF of a set, or None if it is empty.

    With ``is_shorthand`` an exclusive vertex stands for all vertices below it.
    """
    graph = resources.graph
    chosen = dict(resources.vertices())
    if not chosen:
        return None
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    is_complete = True
    for v, is_exclusive in chosen.items():
        above = graph.parent[v]
        if is_shorthand and chosen.get(above, False):
            is_complete = False
            continue
        nodes.append(jgf_vertex(graph, v, is_exclusive, resources))
        if above >= 0:
            edges.append({"source": str(graph.uniq_id[above]), "target": str(graph.uniq_id[v])})
    found: dict[str, Any] = {"graph": {"nodes": nodes, "edges": edges}}
    if not is_complete:
        found["writer"] = SHORTHAND_WRITER
    return found


def write_jgf(resources: ResourceSet) -> str:
    return _dump(jgf_document(resources, is_shorthand=False))


def write_jgf_shorthand(resources: ResourceSet) -> str:
    return _dump(jgf_document(resources, is_shorthand=True))


class _Lite:
    """R_lite: nodes grouped by equal children. Only cores and gpus are children.

    Units taken of consumable pools are listed next to the children, by type and id of the pool:
    ``"shares": {"memory": {"0": 512}}``. Without such pools it is Fluxion's R_lite.
    """

    def __init__(self, resources: ResourceSet) -> None:
        self.graph = graph = resources.graph
        self.groups: dict[str, list[int]] = {}
        self.properties: dict[str, list[int]] = {}
        if graph.consumable:
            self._take_with_shares(resources)
            return
        gathered = {graph.type_number[kind] for kind in _GATHERED}
        kinds = {graph.blocks[number].shape.types[0] for number in resources.booking.blocks}
        if kinds <= gathered:
            self._take_blocks(resources)
            return
        reduced = {graph.type_number[kind]: kind for kind in _REDUCED}
        collected: dict[str, list[int]] = {kind: [] for kind in _REDUCED}
        for v, _ in resources.vertices():
            kind = reduced.get(graph.type_of[v])
            if kind is not None:
                collected[kind].append(graph.id[v])
            elif graph.type_of[v] in gathered and any(collected.values()):
                self._take(v, _children_text(collected))
                collected = {kind: [] for kind in _REDUCED}

    def _take_with_shares(self, resources: ResourceSet) -> None:
        """Group nodes with their cores and gpus, and the units of their pools.

        Pools that are taken whole are included.
        """
        graph, held = self.graph, resources.booking.shares
        reduced = {graph.type_number[kind]: kind for kind in _REDUCED}
        gathered = {graph.type_number[kind] for kind in _GATHERED}
        collected: dict[str, list[int]] = {kind: [] for kind in _REDUCED}
        shares: dict[str, dict[str, int]] = {}
        for v, is_exclusive in resources.vertices():
            kind = graph.type_of[v]
            units = held.get(v, graph.size[v] if is_exclusive else 0)
            if kind in graph.consumable:
                if units:
                    shares.setdefault(graph.types[kind], {})[str(graph.id[v])] = units
            elif kind in reduced:
                collected[reduced[kind]].append(graph.id[v])
            elif kind in gathered and (shares or any(collected.values())):
                ordered = {name: shares[name] for name in sorted(shares)}
                more = f', "shares": {_text(ordered)}' if shares else ""
                self._take(v, _children_text(collected) + more)
                collected, shares = {kind: [] for kind in _REDUCED}, {}

    def _take_blocks(self, resources: ResourceSet) -> None:
        """Group nodes faster if every block is a node.

        Equal masks of one shape have equal children.
        """
        graph = self.graph
        for number, (_, touched) in resources.booking.blocks.items():
            block = graph.blocks[number]
            known = block.shape.lite_texts
            text = known.get(touched)
            if text is None:
                text = self._block_text(block.shape, touched)
                if len(known) >= MAX_TEXTS:
                    known.clear()
                known[touched] = text
            if text:
                self._take(block.base, text)

    def _block_text(self, shape: BlockClass, touched: int) -> str:
        numbers = self.graph.type_number
        collected = {
            kind: [
                shape.ids[i] for i in iterate_bits(shape.type_mask.get(numbers[kind], 0) & touched)
            ]
            for kind in _REDUCED
        }
        return _children_text(collected) if any(collected.values()) else ""

    def _take(self, v: int, children: str) -> None:
        graph = self.graph
        self.groups.setdefault(children, []).append(v)
        if v not in graph.properties:
            return
        for name, value in graph.properties[v].items():
            key = f"{name}={value}" if value else name
            self.properties.setdefault(key, []).append(graph.rank[v])

    def array(self) -> str:
        """Return R_lite as JSON.

        Children are JSON already, because nodes are grouped by that text.
        """
        rank = self.graph.rank
        return ", ".join(
            f'{{"rank": "{idset.encode([rank[v] for v in nodes])}", "children": {children}}}'
            for children, nodes in sorted(self.groups.items())
        ).join("[]")

    def execution(self, resources: ResourceSet) -> str:
        """Return the execution section as JSON."""
        rank = self.graph.rank
        nodes = [v for group in self.groups.values() for v in group]
        nodes.sort(key=rank.__getitem__)
        names = hostlist.compress([self.graph.name(v) for v in nodes])
        properties = ""
        if self.properties:
            ranks = {name: idset.encode(found) for name, found in sorted(self.properties.items())}
            properties = f'"properties": {_text(ranks)}, '
        return (
            f'{{"R_lite": {self.array()}, "nodelist": [{_text(names)}], {properties}'
            f'"starttime": {resources.at}, "expiration": {resources.end}}}'
        )


def _children_text(collected: dict[str, list[int]]) -> str:
    return ", ".join(
        f'"{kind}": "{idset.encode(ids)}"' for kind, ids in collected.items() if ids
    ).join("{}")


def write_rlite(resources: ResourceSet) -> str:
    lite = _Lite(resources)
    return f"{lite.array()}\n" if lite.groups else ""


def write_rv1_nosched(resources: ResourceSet) -> str:
    """Write R without the scheduler's part.

    The text is empty if no node has a core or gpu in it.
    """
    lite = _Lite(resources)
    if not lite.groups:
        return ""
    return f'{{"version": 1, "execution": {lite.execution(resources)}}}\n'


def _write_rv1(resources: ResourceSet, *, is_shorthand: bool) -> str:
    lite = _Lite(resources)
    if not lite.groups:
        return ""
    scheduling = _text(jgf_document(resources, is_shorthand=is_shorthand))
    attributes = ""
    if resources.queue:
        attributes = (
            f', "attributes": {_text({"system": {"scheduler": {"queue": resources.queue}}})}'
        )
    return (
        f'{{"version": 1, "execution": {lite.execution(resources)}, '
        f'"scheduling": {scheduling}{attributes}}}\n'
    )


def write_rv1(resources: ResourceSet) -> str:
    return _write_rv1(resources, is_shorthand=False)


def write_rv1_shorthand(resources: ResourceSet) -> str:
    return _write_rv1(resources, is_shorthand=True)


_text = json.JSONEncoder(ensure_ascii=False).encode


def _dump(value: object) -> str:
    return f"{_text(value)}\n" if value else ""


FORMATS: dict[str, Callable[[ResourceSet], str]] = {
    "simple": write_simple,
    "pretty_simple": write_pretty_simple,
    "jgf": write_jgf,
    "jgf_shorthand": write_jgf_shorthand,
    "rlite": write_rlite,
    "rv1": write_rv1,
    "rv1_nosched": write_rv1_nosched,
    "rv1_shorthand": write_rv1_shorthand,
}
