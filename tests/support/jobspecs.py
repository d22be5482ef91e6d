"""Jobspecs in one line, for tests: ``rack[2] > node[4]! > slot[2]{cpu=4000 pods=1}``."""

from __future__ import annotations

from fluxqueue.jobspec import Jobspec, Resource


def draw(jobspec: Jobspec) -> str:
    """The tree of a jobspec. ``!`` is exclusive, ``&`` stands between siblings."""
    return " & ".join(map(_draw, jobspec.resources))


def _draw(resource: Resource) -> str:
    mark = "!" if resource.is_exclusive else ""
    if resource.is_slot:
        pools = " ".join(
            f"{pool.type}={pool.count.minimum}{'!' if pool.is_exclusive else ''}"
            for pool in resource.with_
        )
        return f"{resource.label}[{resource.count.minimum}]{mark}{{{pools}}}"
    below = " & ".join(map(_draw, resource.with_))
    below = f"({below})" if len(resource.with_) > 1 else below
    return f"{resource.type}[{resource.count.minimum}]{mark} > {below}"
