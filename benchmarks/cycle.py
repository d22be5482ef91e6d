"""The cycle's matcher, as lines of ``make bench-matcher``: figures of docs/developer/matcher.md.

Called by ``benchmarks.matcher``. Each function prints rows of a table and takes the clock to
measure with.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY, PODS
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.process.settings import MATCH_POLICY
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.pending_job import PendingJob

GI = 2**30
CORES = 64_000
POLICY_NAMES = ("first", "firstnodex", "lonode", "hinode", "lonodex", "hinodex", "pack", "spread")
Clock = Callable[[], float]


def node(number: int) -> NodeFact:
    """A node of 64 cores, fifty to a rack, fifty racks to a zone."""
    labels = {
        "topology.kubernetes.io/zone": f"z{number // 2500}",
        "topology.kubernetes.io/rack": f"r{number // 50:03}",
    }
    capacity = {CPU: CORES, MEMORY: 256 * GI, PODS: 110}
    return NodeFact(f"node-{number:05}", f"uid-{number}", capacity, labels)


def cluster(size: int, policy: str = MATCH_POLICY) -> Matcher:
    """A matcher of so many nodes."""
    matcher = Matcher(ShareLedger(), policy)
    facts = [node(number) for number in range(size)]
    matcher.ledger.add_rows([fact.name for fact in facts])
    for fact in facts:
        matcher.set_node(fact, {})
    return matcher


def some(kind: str, count: int, *below: Resource) -> Resource:
    """A vertex of a request."""
    return Resource(kind, Count(count, count), below, label=kind)


def request(cpu: int = 8000, *, count: int = 1, duration_s: int = 3600) -> Jobspec:
    """Equal slots."""
    pools = some(CPU, cpu), some(MEMORY, GI), some(PODS, 1)
    return Jobspec(1, (some("slot", count, *pools),), duration_s=duration_s)


SLOT = some("slot", 2, some(CPU, 8000), some(MEMORY, GI), some(PODS, 1))
RACKS = Jobspec(1, (some("rack", 2, some("node", 4, SLOT)),), duration_s=3600)
ZONE = Jobspec(1, (some("zone", 1, *RACKS.resources),), duration_s=3600)


def timed(clock: Clock, call: Callable[[], object]) -> float:
    """Seconds that ``call`` takes."""
    started = clock()
    call()
    return clock() - started


def row(what: str, value: str, goal: str) -> None:
    """One row of the table."""
    print(f"| {what} | {value} | {goal} |", flush=True)


def one_slot(clock: Clock, size: int, goal_ms: str) -> None:
    """Match and book one slot after the other. Match only is timed."""
    for policy in POLICY_NAMES:
        times = fill(clock, cluster(size, policy), request(), 2000)
        row(f"{size:,} nodes, `{policy}`: one slot, p50", _ms(times), goal_ms)


def fill(clock: Clock, matcher: Matcher, asked: Jobspec, count: int) -> list[float]:
    """Seconds of each of ``count`` matches. What is found is booked."""
    times = []
    for number in range(count):
        started = clock()
        found = matcher.match_now(asked, 0)
        times.append(clock() - started)
        matcher.allocate(f"{id(asked)}-{number}", found)
    return times


def _ms(times: list[float]) -> str:
    return f"{median(times) * 1000:.3f} ms"


def decisions(clock: Clock) -> None:
    """10,000 one-slot decisions of one cycle."""
    mixes = {
        "one shape": lambda _: request(),
        "100 durations": lambda n: request(duration_s=100 + n % 100),
        "20 shapes": lambda n: request(1000 + 100 * (n % 20)),
        "20 shapes, 100 durations": lambda n: request(
            1000 + 100 * (n % 20), duration_s=100 + n % 100
        ),
    }
    for title, make in mixes.items():
        matcher = cluster(10_000)
        queue = [PendingJob(str(n), n, 0, make(n)) for n in range(10_000)]
        took = timed(clock, partial(run_cycle, matcher, queue, POLICIES["easy"], 0))
        row(f"10,000 nodes, a cycle of 10,000 decisions: {title}", f"{took:.2f} s", "<= 1.0 s")


def levels(clock: Clock) -> None:
    """Requests over several levels, and failing ones."""
    matcher = cluster(10_000)
    for title, asked in (("rack[2] → node[4] → slot[2]", RACKS), ("the same below zone[1]", ZONE)):
        times = fill(clock, matcher, asked, 300)
        row(f"10,000 nodes, `{title}`, p50", _ms(times), "<= 0.3 ms")
    matcher = cluster(10_000)
    for number in range(10_000):
        matcher.allocate(str(number), matcher.match_now(request(60_000), 0))
    for title, asked_ in (("one slot", request()), ("over levels", RACKS)):
        times = []
        for number in range(200):
            times.append(timed(clock, partial(_fails, matcher, asked_)))
            matcher.cancel(str(number))
            matcher.allocate(str(number), matcher.match_now(request(60_000), 0))
        row(f"10,000 nodes, failing: {title}, p50", _ms(times), "<= 0.05 ms")


def _fails(matcher: Matcher, asked: Jobspec) -> None:
    try:
        matcher.match_now(asked, 0)
    except InsufficientResources:
        return
    raise AssertionError("it fits")


def reservations(clock: Clock) -> None:
    """Promises beside starts, and promises of a whole cycle."""
    matcher = cluster(4000)
    for number in range(30_000):
        found = matcher.match_now(request(), 0)
        matcher.allocate(f"run-{number}", replace(found, until=1000 + 37 * number % 50_003))

    def alternate() -> None:
        for number in range(50):
            wide = request(CORES, count=4 + number % 3, duration_s=600)
            matcher.reserve(matcher.match_later(wide, 0), 0)
            short = request(1000, duration_s=300 + number)
            matcher.allocate(f"start-{number}", matcher.match_now(short, 0))

    took = timed(clock, alternate)
    what = "4,000 nodes, 30,000 running: 50 reservations alternating with 50 starts"
    row(what, f"{took:.2f} s", "<= 1.0 s")
    for wide in (1, 10):
        matcher = cluster(10_000)
        for number in range(1000):
            found = matcher.match_now(request(CORES, count=10), 0)
            matcher.allocate(f"run-{number}", replace(found, until=1000 + 37 * number % 5003))
        queue = [
            PendingJob(f"w{n}", n, 0, request(CORES, count=wide * (2 + n % 7), duration_s=600 + n))
            for n in range(100)
        ]
        cycle = partial(run_cycle, matcher, queue, POLICIES["conservative"], 0)
        took = timed(clock, cycle)
        what = f"10,000 nodes, 1,000 running: 100 reservations of {2 * wide} to {8 * wide} nodes"
        row(what, f"{took:.2f} s", "<= 0.2 s")


def restart(clock: Clock) -> None:
    """What a worker does that takes the matcher's role over."""
    matcher = cluster(10_000)
    given = []
    for number in range(20_000):
        given.append(matcher.match_now(request(), 0))
        matcher.allocate(str(number), given[-1])
    fresh = cluster(10_000)

    book = partial(fresh.ledger.book_all, [(str(n), one) for n, one in enumerate(given)])
    row("20,000 allocations booked", f"{timed(clock, book):.2f} s", "<= 0.2 s")


def changes(clock: Clock) -> None:
    """One node joins and leaves, each time with the match that finds it so."""
    matcher = cluster(10_000)
    for number in range(10_000):
        matcher.allocate(str(number), matcher.match_now(request(60_000), 0))
    joins, leaves = [], []
    asked = request()
    for number in range(200):
        fact = replace(node(0), name=f"late-{number}")
        started = clock()
        matcher.set_node(fact, {})
        matcher.match_now(asked, 0)
        joined = clock()
        matcher.remove_node(fact.name)
        _fails(matcher, asked)
        joins.append(joined - started)
        leaves.append(clock() - joined)
    row("10,000 nodes, one joins, with the next match", _ms(joins), "<= 1 ms")
    row("10,000 nodes, one leaves, with the next match", _ms(leaves), "<= 1 ms")
    row("rows after 200 came and went", f"{len(matcher.ledger.names):,}", "as many as before")


def large(clock: Clock) -> None:
    """50,000 nodes of eight pools: load and memory of this process."""
    extra = {f"example.com/pool-{n}": 8 for n in range(5)}
    holder: list[Matcher] = []

    def load() -> None:
        matcher = Matcher(ShareLedger(), MATCH_POLICY)
        facts = [node(number) for number in range(50_000)]
        matcher.ledger.add_rows([fact.name for fact in facts])
        for fact in facts:
            matcher.set_node(replace(fact, capacity={**fact.capacity, **extra}), {})
        matcher.match_now(request(), 0)
        holder.append(matcher)

    took = timed(clock, load)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    row("50,000 nodes x 8 pools: load with the first match", f"{took:.2f} s", "<= 3 s")
    row("50,000 nodes x 8 pools: peak RSS", f"{peak} MiB", "<= 600 MB")


def run(clock: Clock, step: str) -> None:
    """One part, in a process of its own."""
    gc.freeze()
    if step == "match":
        one_slot(clock, 4000, "<= 0.10 ms")
        one_slot(clock, 10_000, "<= 0.15 ms")
        levels(clock)
    elif step == "cycle":
        decisions(clock)
        reservations(clock)
        restart(clock)
        changes(clock)
    else:
        large(clock)


STEPS = ("match", "cycle", "large")
