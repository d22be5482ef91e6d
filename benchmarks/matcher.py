"""``make bench-matcher``: the graph matcher's speed and memory, as tables.

Each graph runs in a process of its own, so that its memory is its own. A match is timed with its R
(``rv1_nosched``) as text. The jobspec is parsed before. Graphs are filled to the first failure or
until the time is up, then every job is cancelled, and again. ``--cpu`` counts processor time
instead of wall time, for machines that are shared.
"""

from __future__ import annotations

import argparse
import gc
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

from benchmarks import cycle, new_nodes
from benchmarks.under_way import under_way
from fluxion.formats.grug import read_grug
from fluxion.formats.jgf import read_jgf
from fluxion.formats.node_document import node_document
from fluxion.formats.writers import write
from fluxion.ledger.booking import Booking
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec import Count, Jobspec, Resource

GRAPHS = {"1x16": (1, 1, 16), "128x36": (8, 16, 36), "4000x64": (80, 50, 64),
          "10000x64": (200, 50, 64)}  # fmt: skip
GOALS_MS = {"1x16": 0.10, "128x36": 0.15, "4000x64": 0.5, "10000x64": 1.0}
"""Of a match's p50, every policy: jobs of one and of four nodes."""
WIDE_GOAL_MS = 2.0
"""The same for 64 exclusive nodes."""
POLICIES = ("first", "firstnodex", "low", "high", "lonode", "hinode", "lonodex", "hinodex",
            "pack", "spread")  # fmt: skip
GRUG = """<graphml><key id="root" for="node" attr.name="root"><default>0</default></key>
<key id="type" for="node" attr.name="type"/>
<key id="scale" for="edge" attr.name="multi_scale"/><key id="scope" for="edge" attr.name="id_scope">
<default>0</default></key><graph>
<node id="c"><data key="root">1</data><data key="type">cluster</data></node>
<node id="r"><data key="type">rack</data></node><node id="n"><data key="type">node</data></node>
<node id="k"><data key="type">core</data></node>
<edge source="c" target="r"><data key="scale">{}</data></edge>
<edge source="r" target="n"><data key="scale">{}</data><data key="scope">1</data></edge>
<edge source="n" target="k"><data key="scale">{}</data></edge></graph></graphml>"""


def slot(cores: int) -> Resource:
    core = Resource("core", Count(cores, cores))
    return Resource("slot", Count(1, 1), (core,), label="default")


def job(top: Resource, duration_s: float = 3600.0) -> Jobspec:
    return Jobspec(1, (top,), duration_s=duration_s)


def nodes(count: int, *, is_exclusive: bool | None = None) -> Resource:
    return Resource("node", Count(count, count), (slot(8),), is_exclusive=is_exclusive)


JOBS = {
    "slot1-core1": job(slot(1)),
    "slot1-core8": job(slot(8)),
    "node1-slot1-core8": job(nodes(1)),
    "node4-slot1-core8": job(nodes(4)),
    "node64x": job(nodes(64, is_exclusive=True)),
    "rack1-node4": job(Resource("rack", Count(1, 1), (nodes(4),))),
}


class Stopwatch:
    """The clock of all measurements: wall time, or processor time with ``--cpu``."""

    read: Callable[[], float] = staticmethod(perf_counter)


def rss_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def timed(call: Callable[[], object]) -> float:
    started = Stopwatch.read()
    call()
    return Stopwatch.read() - started


def run_jobs(graph: ResourceGraph, policy: str, jobspec: Jobspec, budget_s: float) -> list[str]:
    """Fill, fail, cancel, in rounds. P50, p99, p50 of a failing match, p50 of cancel."""
    matcher = FluxionMatcher(graph, policy)
    matches: list[float] = []
    failures: list[float] = []
    cancels: list[float] = []
    deadline = Stopwatch.read() + budget_s
    number = 0
    while Stopwatch.read() < deadline:
        booked: list[int] = []
        while Stopwatch.read() < deadline:
            number += 1
            started = Stopwatch.read()
            try:
                found = matcher.match(jobspec, number)
                assert found is not None
                write(found, "rv1_nosched")
            except InsufficientResources:
                failures.append(Stopwatch.read() - started)
                break
            matches.append(Stopwatch.read() - started)
            booked.append(number)
        if not booked:
            break
        for one in booked:
            started = Stopwatch.read()
            matcher.cancel(one)
            cancels.append(Stopwatch.read() - started)
    if not failures:
        failures = fail_when_full(graph, policy, jobspec)
    return [_ms(matches, 50), _ms(matches, 99), _ms(failures, 50), _ms(cancels, 50, digits=4)]


def fail_when_full(graph: ResourceGraph, policy: str, jobspec: Jobspec) -> list[float]:
    """Times of failing matches on a graph that whole-node jobs have filled."""
    matcher = FluxionMatcher(graph, policy)
    number = 0
    for step in (64, 1):
        try:
            while True:
                number += 1
                matcher.match(job(nodes(step, is_exclusive=True)), number)
        except InsufficientResources:
            pass
    failures: list[float] = []
    for _ in range(50):
        started = Stopwatch.read()
        try:
            matcher.match(jobspec, 0)
        except InsufficientResources:
            failures.append(Stopwatch.read() - started)
    return failures


def _ms(seconds: list[float], percentile: int, digits: int = 3) -> str:
    if not seconds:
        return "-"
    ordered = sorted(seconds)
    value = ordered[min(len(ordered) * percentile // 100, len(ordered) - 1)]
    return f"{value * 1000:.{digits}f}"


def bench_graph(name: str, budget_s: float, policies: tuple[str, ...]) -> None:
    """All policies and jobs on one graph."""
    racks, per_rack, cores = GRAPHS[name]
    text = GRUG.format(racks, per_rack, cores)
    holder: list[ResourceGraph] = []
    load_s = timed(lambda: holder.append(read_grug(text)))
    graph = holder[0]
    gc.freeze()  # as a scheduler would after loading: the graph never becomes garbage
    print(f"\n## {name}: {len(graph)} vertices; GRUG load {load_s:.2f} s, RSS {rss_mib()} MiB\n")
    print("| policy | job | p50 ms | goal | p99 ms | failing ms | cancel ms |")
    print("|---|---|---|---|---|---|---|")
    for policy in policies:
        for title, jobspec in JOBS.items():
            top = jobspec.resources[0]
            wanted = top.with_[0] if top.type == "rack" else top
            if wanted.type == "node" and wanted.count.minimum > racks * per_rack:
                continue
            p50, *others = run_jobs(graph, policy, jobspec, budget_s)
            goal = f"<= {WIDE_GOAL_MS if title == 'node64x' else GOALS_MS[name]}"
            print(f"| {policy} | {title} | {p50} | {goal} | {' | '.join(others)} |", flush=True)
    print(f"\nRSS at the end: {rss_mib()} MiB")


def bench_load(name: str) -> None:
    """Load from JGF and from Kubernetes nodes."""
    racks, per_rack, cores = GRAPHS[name]
    facts = [
        NodeFact(
            f"node{i}", f"uid{i}", {"cpu": cores * 1000},
            labels={"topology.kubernetes.io/rack": f"rack{i // per_rack}"},
        )
        for i in range(racks * per_rack)
    ]  # fmt: skip
    holder: list[ResourceGraph] = []
    nodes_s = timed(lambda: holder.append(graph_from_nodes(facts)))
    print(f"| {name} | Kubernetes nodes | {nodes_s:.2f} s | {rss_mib()} MiB |", flush=True)


def bench_change(name: str) -> None:
    """One node joins a graph with work on it, its pools change, and it leaves again."""
    racks, per_rack, cores = GRAPHS[name]
    facts = [
        NodeFact(f"node{i}", f"uid{i}", {"cpu": cores * 1000, "memory": 256 << 30})
        for i in range(racks * per_rack)
    ]
    share = Resource("slot", Count(1, 1), (Resource("cpu", Count(1500, 1500)),), label="default")
    for what, takes_shares in (("cores", False), ("shares", True)):
        matcher = FluxionMatcher(graph_from_nodes(facts, takes_shares=takes_shares), "lonode")
        gc.freeze()
        request = job(share) if takes_shares else JOBS["slot1-core8"]
        matches = [timed(partial(matcher.match, request, number)) for number in range(1000)]
        joins, resizes, leaves = [], [], []
        for number in range(20):
            fact = NodeFact(f"late{number}", f"late{number}", facts[0].capacity)
            document = node_document(matcher.graph, fact, takes_shares=takes_shares)
            joins.append(timed(partial(_change, matcher.attach, document, matcher, request)))
            (v,) = matcher.graph.find_path(f"/cluster0/{fact.name}")
            if takes_shares:
                resizes.append(timed(partial(matcher.resize, v + 1, 32_000)))
            leaves.append(timed(partial(_change, matcher.remove_subtree, v, matcher, request)))
        print(
            f"| {name} | {what} | one node joins (with the next match) {_ms(joins, 50)} ms, "
            f"is resized {_ms(resizes, 50)} ms, leaves {_ms(leaves, 50)} ms; "
            f"a match {_ms(matches, 50)} ms | {rss_mib()} MiB |",
            flush=True,
        )


def _change(
    change: Callable[[Any], None], what: object, matcher: FluxionMatcher, request: Jobspec
) -> None:
    """A change of the graph, and the match that finds it done."""
    change(what)
    matcher.match(request, -1, verb=SearchVerb.WITHOUT_ALLOCATING)


def bench_jgf(name: str) -> None:
    """Load a JGF document that another process wrote to standard input."""
    data = sys.stdin.buffer.read()
    holder: list[ResourceGraph] = []
    load_s = timed(lambda: holder.append(read_jgf(data)))
    size = len(data) / 1e6
    print(f"| {name} | JGF, {size:.0f} MB | {load_s:.2f} s | {rss_mib()} MiB |", flush=True)


def emit_jgf(name: str) -> None:
    graph = read_grug(GRUG.format(*GRAPHS[name]))
    blocks = {i: (b.shape.full, b.shape.full) for i, b in enumerate(graph.blocks)}
    whole = Booking(1, 0, 1, False, blocks, dict.fromkeys(graph.tops, False))
    for v in range(len(graph)):
        graph.rank[v] = max(graph.rank[v], -1)
    document = write(ResourceSet(graph, whole), "jgf")
    sys.stdout.write(document.replace('"exclusive": true, ', ""))


def bench_bulk() -> None:
    """10,000 one-slot matches in one cycle, and reservations over a full cluster."""
    graph = read_grug(GRUG.format(*GRAPHS["10000x64"]))
    for policy in ("first", "low", "lonode"):
        matcher = FluxionMatcher(graph, policy)
        started = Stopwatch.read()
        for number in range(10_000):
            matcher.match(JOBS["slot1-core8"], number)
        seconds = Stopwatch.read() - started
        print(f"| 10000x64 | {policy} | 10,000 one-slot matches | {seconds:.2f} s |", flush=True)
    graph = read_grug(GRUG.format(*GRAPHS["4000x64"]))
    for policy in ("first", "lonode"):
        for title, request in (("64 cores", job(slot(64))), ("4 nodes", job(nodes(4)))):
            matcher = FluxionMatcher(graph, policy)
            for number in range(1000):
                matcher.match(job(nodes(4, is_exclusive=True), 60.0 * (number + 1)), number)
            started = Stopwatch.read()
            for number in range(1000, 1100):
                matcher.match(request, number, verb=SearchVerb.ALLOCATE_ORELSE_RESERVE)
            seconds = Stopwatch.read() - started
            print(
                f"| 4000x64 | {policy} | 1,000 running, 100 reservations of {title} "
                f"| {seconds:.2f} s |",
                flush=True,
            )


def _child(*arguments: str, stdin: int | None = None) -> None:
    subprocess.run(
        [sys.executable, "-m", "benchmarks.matcher", *arguments], check=True, stdin=stdin
    )


def main() -> None:
    """Run everything, each graph in a child process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", nargs="?", default="all")
    parser.add_argument("graph", nargs="?", default="")
    parser.add_argument("--seconds", type=float, default=0.5, help="per policy and job")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--cpu", action="store_true", help="processor time instead of wall time")
    options = parser.parse_args()
    if options.cpu:
        Stopwatch.read = staticmethod(process_time)
    if options.step == "graph":
        bench_graph(options.graph, options.seconds, tuple(options.policies.split(",")))
    elif options.step == "load":
        bench_load(options.graph)
    elif options.step == "change":
        bench_change(options.graph)
    elif options.step == "jgf":
        bench_jgf(options.graph)
    elif options.step == "emit":
        emit_jgf(options.graph)
    elif options.step == "bulk":
        bench_bulk()
    elif options.step == "shares":
        cycle.run(Stopwatch.read, options.graph)
    elif options.step == "pools":
        new_nodes.run(Stopwatch.read)
    else:
        _run_all(options)


def _run_all(options: argparse.Namespace) -> None:
    clock = ["--cpu"] if options.cpu else []
    print(
        f"# The graph matcher\n\n{'Processor' if clock else 'Wall'} time; "
        "goals: docs/developer/matcher.md."
    )
    print(
        "\n## The cycle's table of shares\n\n| what | measured | goal |\n|---|---|---|", flush=True
    )
    for step in cycle.STEPS:
        _child("shares", step, *clock)
    _child("pools", *clock)
    for name in GRAPHS:
        _child(
            "graph", name, "--seconds", str(options.seconds), "--policies", options.policies, *clock
        )
    print("\n## Load\n\n| graph | from | time | peak RSS |\n|---|---|---|---|", flush=True)
    for name in ("4000x64", "10000x64"):
        _child("load", name, *clock)
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.matcher", "emit", name], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            _child("jgf", name, *clock, stdin=writer.stdout.fileno())
    print(
        "\n## One node more or less\n\n| graph | of | times | peak RSS |\n|---|---|---|---|",
        flush=True,
    )
    _child("change", "10000x64", *clock)
    print("\n## Cycles\n\n| graph | policy | what | time |\n|---|---|---|---|", flush=True)
    _child("bulk", *clock)


if __name__ == "__main__":
    with under_way("matcher"):
        main()
