"""Whether a changed request asks for more, so that it takes a new place in the queue.

``db.store.observations`` calls it for each request that its author has changed. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from fluxqueue.jobspec.demand import ANYWHERE
from fluxqueue.jobspec.model import Count, Jobspec, Resource

_ANY = Count(1, 1)


def asks_for_more(old: Jobspec, new: Jobspec) -> bool:
    """Return whether ``new`` may need anything that ``old`` did not.

    Fewer or smaller slots, less time and fewer demands on nodes are less. All other changes count
    as more, because nothing shows that they are not.
    """
    if (new.duration_s or inf) > (old.duration_s or inf):
        return True
    if new.where not in {ANYWHERE, old.where}:
        return True
    # What has no influence on the match is not compared.
    same = replace(
        old,
        resources=new.resources,
        tasks=new.tasks,
        duration_s=new.duration_s,
        queue=new.queue,
        where=new.where,
        system=new.system,
        user=new.user,
    )
    if same != new:
        return True
    return not _is_within(old.resources, new.resources)


def _is_within(old: Sequence[Resource], new: Sequence[Resource]) -> bool:
    """Return whether each resource of ``new`` is one of ``old``, and no more of it."""
    left = list(old)
    for one in new:
        found = next((other for other in left if _is_part(other, one)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _is_part(old: Resource, new: Resource) -> bool:
    if replace(old, count=_ANY, with_=()) != replace(new, count=_ANY, with_=()):
        return False
    if new.count.minimum > old.count.minimum or new.count.maximum > old.count.maximum:
        return False
    return _is_within(old.with_, new.with_)
