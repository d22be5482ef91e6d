"""Random small graphs, jobspecs and histories for the matcher's property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from fluxion.model.builder import GraphBuilder, Vertex
from fluxion.model.store import ResourceGraph
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource

STATIC_POLICIES = ["low", "high", "lonode", "hinode", "lonodex", "hinodex"]
EARLY_POLICIES = ["first", "firstnodex"]


@st.composite
def graphs(draw: st.DrawFn, *, max_racks: int = 3, max_nodes: int = 3) -> ResourceGraph:
    """cluster -> racks -> nodes -> (sockets ->) cores, gpus and memory pools. The pools are whole
    vertices of 1 to 3 units as in Fluxion, or consumable ones of up to 7."""
    builder = GraphBuilder()
    numbers = iter(range(10_000))

    def add(kind: str, number: int, parent: int | None, **more: object) -> int:
        vertex = Vertex(kind, id=number, uniq_id=next(numbers), **more)  # type: ignore[arg-type]
        v = builder.add(vertex)
        if parent is not None:
            builder.connect(parent, v)
        return v

    root = add("cluster", 0, None)
    has_sockets = draw(st.booleans())
    is_consumable = draw(st.booleans())
    rank = 0
    zones = [add("zone", i, root) for i in range(draw(st.sampled_from([0, 0, 1, 2])))]
    for rack_number in range(draw(st.integers(1, max_racks))):
        zone = draw(st.sampled_from(zones)) if zones else root
        number = rack_number // draw(st.integers(1, 2))
        rack = add("rack", number, zone, name=f"rack{rack_number}")
        for _ in range(draw(st.integers(1, max_nodes))):
            properties = draw(st.sampled_from([{}, {"fast": ""}, {"fast": "", "big": "1"}]))
            node = add("node", rank, rack, rank=rank, properties=properties)
            rank += 1
            core = 0
            for socket_number in range(draw(st.integers(1, 2)) if has_sockets else 1):
                parent = add("socket", socket_number, node) if has_sockets else node
                for _ in range(draw(st.integers(2, 6))):
                    add("core", core, parent)
                    core += 1
                for gpu in range(draw(st.integers(0, 2))):
                    add("gpu", socket_number * 4 + gpu, parent)
                for pool in range(draw(st.integers(0, 2))):
                    size = draw(st.integers(1, 7 if is_consumable else 3))
                    add(
                        "memory",
                        socket_number * 4 + pool,
                        parent,
                        size=size,
                        is_consumable=is_consumable,
                    )
    return builder.build()


counts = st.one_of(
    st.just(Count(1, 1)),
    st.just(Count(1, 1)),
    st.integers(1, 3).map(lambda n: Count(n, n)),
    st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(1, 2)).map(
        lambda t: Count(t[0], t[0] + t[1], "+", t[2])
    ),
    st.just(Count(2, 8, "*", 2)),
)


@st.composite
def slots(draw: st.DrawFn) -> Resource:
    kinds = draw(
        st.one_of(
            st.just(["core"]),
            st.lists(st.sampled_from(["core", "gpu", "memory"]), min_size=1, unique=True),
        )
    )
    parts = tuple(Resource(kind, draw(counts)) for kind in kinds)
    if draw(st.integers(0, 4)) == 0:
        parts = (Resource("socket", draw(counts), parts),)
    return Resource("slot", draw(counts), parts, label="default")


@st.composite
def jobspecs(draw: st.DrawFn) -> Jobspec:
    """Slots alone, below nodes, below racks. Whole nodes. Now and then with a constraint."""
    top = draw(slots())
    shape = draw(
        st.sampled_from(
            ["slot", "slot", "slot", "node", "node", "node", "rack", "rack", "whole", "slot-node"]
        )
    )
    if shape in ("node", "whole") or (shape == "rack" and draw(st.booleans())):
        exclusive = True if shape == "whole" else None
        top = Resource("node", draw(counts), (top,), is_exclusive=exclusive)
    if shape == "rack":
        top = Resource("rack", draw(counts), (top,))
        if draw(st.integers(0, 3)) == 0:
            top = Resource(draw(st.sampled_from(["cluster", "zone"])), Count(1, 1), (top,))
    if shape == "slot-node":
        top = Resource("slot", draw(counts), (Resource("node", draw(counts)),), label="default")
    constraint = draw(
        st.sampled_from(
            [
                None,
                None,
                None,
                None,
                Constraint("properties", ("fast",)),
                Constraint("properties", ("^big",)),
            ]
        )
    )
    return Jobspec(
        version=1,
        resources=(top,),
        duration_s=draw(st.sampled_from([1.0, 5.0, 10.0, 10.0])),
        where=NodeDemand(constraint),
    )


@st.composite
def wild_resources(draw: st.DrawFn, depth: int = 0) -> Resource:
    """Any tree of requests, sensible or not: slots in slots, wrong orders, zero and huge counts."""
    kind = draw(st.sampled_from(["slot", "cluster", "rack", "node", "socket", "core", "memory"]))
    inner: tuple[Resource, ...] = ()
    if depth < 4 and (kind == "slot" or draw(st.booleans())):
        inner = tuple(draw(wild_resources(depth=depth + 1)) for _ in range(draw(st.integers(1, 2))))
    if kind == "slot" and not inner:
        kind = "core"
    count = draw(st.one_of(counts, st.sampled_from([Count(0, 0), Count(1, (1 << 32) - 1)])))
    exclusive = draw(st.sampled_from([None, None, None, True, False]))
    return Resource(kind, count, inner, is_exclusive=exclusive, label="x")


wild_jobspecs = st.lists(wild_resources(), min_size=1, max_size=2).map(
    lambda found: Jobspec(1, tuple(found), duration_s=10.0)
)
