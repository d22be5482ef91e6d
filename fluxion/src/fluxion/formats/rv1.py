"""The rv1exec reader: an R of RFC 20 as a graph, and as a document to book or give back.

Called for ``-f rv1exec`` and by update and partial cancel. R has only ranks and hostnames of nodes,
and the local ids of their children. Every vertex has size 1 (flux-sched,
resource/readers/resource_reader_rv1exec.cpp).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fluxion.model.builder import MAX_SIZE, GraphBuilder, Vertex
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidGraph, InvalidInput
from fluxqueue.fluxjob import hostlist
from fluxqueue.jobspec import document, idset

MAX_BYTES = 256 << 20
MAX_VERTICES = 5_000_000
_POOL_ID = re.compile(r"-?[0-9]{1,18}")
_SUFFIX = re.compile(r"^(.*?)([0-9]{0,18})$", re.DOTALL)


@dataclass(slots=True)
class RankEntry:
    """One node of an R: its broker rank, its hostname, its children and its shares.

    Children are (type, ids). Shares are the units taken of its consumable pools as (type, id ->
    units).
    """

    rank: int
    host: str
    children: list[tuple[str, list[int]]] = field(default_factory=list)
    shares: list[tuple[str, dict[int, int]]] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Rv1:
    """A parsed R. ``scheduling`` is its JGF part, unparsed."""

    entries: list[RankEntry]
    starttime: float = 0.0
    expiration: float = 0.0
    scheduling: Any = None


def parse_rv1(text: str | bytes, *, needs_hosts: bool = True) -> Rv1:
    """Read an R.

    Parameters
    ----------
    needs_hosts
        False for partial cancel, which uses only the ranks.

    Raises
    ------
    InvalidGraph
        Not JSON, a version other than 1, missing keys, an idset or hostlist that cannot be parsed,
        or fewer hosts than ranks.
    """
    data = document.to_bytes(text, InvalidGraph)
    top = document.load_json(data, InvalidGraph, MAX_BYTES)
    if not isinstance(top, dict) or top.get("version") != 1:
        raise InvalidGraph("R must be an object of version 1", where="version")
    execution = top.get("execution")
    if not isinstance(execution, dict) or not isinstance(execution.get("R_lite"), list):
        raise InvalidGraph("is missing or no array", where="execution.R_lite")
    lite = [_lite(entry, f"execution.R_lite[{i}]") for i, entry in enumerate(execution["R_lite"])]
    ranks = sorted({rank for found, _, _ in lite for rank in found})
    hosts = _hosts(execution.get("nodelist"), len(ranks)) if needs_hosts else [""] * len(ranks)
    host_of = dict(zip(ranks, hosts, strict=False))
    properties = _properties(execution.get("properties"))
    entries = [
        RankEntry(
            rank, host_of[rank], children, shares, dict.fromkeys(properties.get(rank, ()), "")
        )
        for found, children, shares in lite
        for rank in found
    ]
    return Rv1(
        entries,
        starttime=_time(execution, "starttime"),
        expiration=_time(execution, "expiration"),
        scheduling=top.get("scheduling"),
    )


Lite = tuple[list[int], list[tuple[str, list[int]]], list[tuple[str, dict[int, int]]]]


def _lite(entry: Any, where: str) -> Lite:
    if not isinstance(entry, dict) or not isinstance(entry.get("rank"), str):
        raise InvalidGraph("needs the string 'rank'", where=where)
    children = entry.get("children", {})
    if not isinstance(children, dict):
        raise InvalidGraph("must be an object", where=f"{where}.children", value=children)
    found: list[tuple[str, list[int]]] = []
    for kind, ids in children.items():
        if not isinstance(ids, str):
            raise InvalidGraph("must be an idset", where=f"{where}.children.{kind}", value=ids)
        found.append((kind, _idset(ids, f"{where}.children.{kind}")))
    shares = _shares(entry.get("shares", {}), f"{where}.shares")
    return _idset(entry["rank"], f"{where}.rank"), found, shares


def _shares(given: Any, where: str) -> list[tuple[str, dict[int, int]]]:
    """Return units by type and id of the pool, as ``writers`` has them. RFC 20 has none."""
    if not isinstance(given, dict):
        raise InvalidGraph("must be an object", where=where, value=given)
    found: list[tuple[str, dict[int, int]]] = []
    for kind, units_of in given.items():
        if not isinstance(units_of, dict):
            raise InvalidGraph("must be an object", where=f"{where}.{kind}", value=units_of)
        pools: dict[int, int] = {}
        for number, units in units_of.items():
            here = f"{where}.{kind}.{number}"
            if not _POOL_ID.fullmatch(number):
                raise InvalidGraph("is no id of a pool", where=here, value=number)
            if type(units) is not int or not 0 < units <= MAX_SIZE:
                raise InvalidGraph("must be a positive whole number", where=here, value=units)
            pools[int(number)] = units
        found.append((kind, pools))
    return found


def _idset(text: str, where: str) -> list[int]:
    try:
        return idset.decode(text)
    except InvalidInput as refusal:
        raise InvalidGraph(refusal.message, where=where, value=text[:80]) from refusal


def _hosts(nodelist: Any, needed: int) -> list[str]:
    where = "execution.nodelist"
    if not isinstance(nodelist, list):
        raise InvalidGraph("is missing or no array", where=where)
    hosts: list[str] = []
    for i, text in enumerate(nodelist):
        if not isinstance(text, str):
            raise InvalidGraph("must be a hostlist", where=f"{where}[{i}]", value=text)
        try:
            hosts += hostlist.expand(text)
        except InvalidInput as refusal:
            raise InvalidGraph(refusal.message, where=f"{where}[{i}]") from refusal
    if len(hosts) < needed:
        raise InvalidGraph(f"has {len(hosts)} hosts for {needed} ranks", where=where)
    return hosts


def _properties(found: Any) -> dict[int, list[str]]:
    of_rank: dict[int, list[str]] = {}
    if found is None:
        return of_rank
    if not isinstance(found, dict):
        raise InvalidGraph("must be an object", where="execution.properties", value=found)
    for name, ranks in found.items():
        if not isinstance(ranks, str):
            raise InvalidGraph("must be an idset", where=f"execution.properties.{name}")
        for rank in _idset(ranks, f"execution.properties.{name}"):
            of_rank.setdefault(rank, []).append(name)
    return of_rank


def _time(execution: dict[str, Any], key: str) -> float:
    value = execution.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidGraph("must be a number", where=f"execution.{key}", value=value)
    return float(value)


def split_host(host: str) -> tuple[str, int]:
    """Return ``("node", 12)`` for ``node12``. A name without digits has id -1."""
    match = _SUFFIX.match(host)
    assert match is not None
    return match[1], int(match[2]) if match[2] else -1


def read_rv1(text: str | bytes) -> ResourceGraph:
    """Build a graph from an R: cluster, nodes, their children. Raises as ``parse_rv1``."""
    builder = GraphBuilder()
    root = builder.add(Vertex("cluster"))
    uniq_id = 1
    for entry in parse_rv1(text).entries:
        basename, number = split_host(entry.host)
        node = builder.add(
            Vertex(
                "node",
                id=number,
                uniq_id=uniq_id,
                basename=basename or "node",
                name=entry.host,
                rank=entry.rank,
                properties=entry.properties,
            ),
            f"rank {entry.rank}",
        )
        builder.connect(root, node)
        uniq_id += 1
        for kind, ids in entry.children:
            if uniq_id + len(ids) > MAX_VERTICES:
                raise InvalidGraph(f"has more than {MAX_VERTICES} vertices", where="R_lite")
            for child_id in ids:
                child = builder.add(
                    Vertex(kind, id=child_id, uniq_id=uniq_id, rank=entry.rank), "R_lite"
                )
                builder.connect(node, child)
                uniq_id += 1
    return builder.build()
