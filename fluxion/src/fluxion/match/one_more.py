"""One more slot of a request's last kind: what it takes, and what ties it to its siblings.

Running work on graphs of vertices grows by it. The table of shares has its own form of a request
(``shares.ask``). ``by_vertices`` calls it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.jobspec.model import NODE, Count, Jobspec, Resource

ONE = Count(1, 1)


@dataclass(frozen=True, slots=True)
class OneMore:
    """A request for one more slot.

    ``jobspec`` asks for the slot alone. If ``level`` is set, all slots stand in the same vertex of
    that level. At most ``on_each`` slots stand on each of ``nodes`` nodes (0: on any).
    """

    jobspec: Jobspec
    level: str
    nodes: int
    on_each: int


def one_more(jobspec: Jobspec, root: str) -> OneMore:
    """Return one slot of the last kind of ``jobspec``.

    ``root`` is the type at the top of the graph.

    Raises
    ------
    InsufficientResources
        It has no slots.
    """
    level, nodes, on_each, is_whole = "", 0, 0, False
    part = jobspec.resources[-1] if jobspec.resources else None
    while part is not None and not part.is_slot:
        if part.type == NODE:
            nodes, is_whole = max(1, part.count.minimum), part.is_exclusive is True
            on_each = sum(max(1, slot.count.minimum) for slot in part.with_)
        elif part.type != root:
            level = part.type
        part = part.with_[-1] if part.with_ else None
    if part is None:
        raise InsufficientResources("asks for no slots")
    if any(one.type == NODE for one in part.with_):
        nodes, on_each = max(1, part.count.minimum), 1
    one = replace(part, count=ONE)
    top = Resource(NODE, ONE, (one,), is_exclusive=True) if is_whole else one
    return OneMore(replace(jobspec, resources=(top,), prefer_within=""), level, nodes, on_each)
