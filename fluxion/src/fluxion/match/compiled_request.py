"""A jobspec compiled for one graph: types as numbers, sums of what is needed below.

The matcher compiles it once per jobspec and graph, and uses the result for every match. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import copy
from typing import Any

from fluxqueue.errors import InvalidJobspec
from fluxqueue.jobspec.bounds import SLOTS_MAX
from fluxqueue.jobspec.model import Count, Jobspec, Resource
from fluxqueue.jobspec.shape import bounded


class Need:
    """One resource of the request.

    ``below`` is the least that one of it needs, by type. ``labels`` are the labels of the slots
    that it is, or that are below it.
    """

    __slots__ = (
        "below",
        "children",
        "count",
        "is_exclusive",
        "is_slot",
        "kind",
        "label",
        "labels",
        "per_share",
        "slot",
    )

    def __init__(
        self, resource: Resource, kind: int, children: tuple[Need, ...], *, has_pools: bool
    ) -> None:
        self.kind = kind
        is_bounded = has_pools and resource.is_slot
        self.count: Count = bounded(resource.count) if is_bounded else resource.count
        self.children = children
        self.is_slot = resource.is_slot
        self.is_exclusive = resource.is_exclusive
        self.label = resource.label
        self.per_share = resource.count.largest
        self.slot = next((c for c in reversed(children) if c.is_slot), None)
        self.below = total_needs(children)
        own = {resource.label} if resource.is_slot else set()
        self.labels: frozenset[str] = frozenset(own.union(*(c.labels for c in children)))

    def at_least(self) -> Need:
        """Return the same with the counts of levels, nodes and slots fixed at their minimum."""
        found = copy(self)
        found.count = Count(self.count.minimum, self.count.minimum)
        found.per_share = self.count.minimum
        if not self.is_slot:
            found.children = tuple(child.at_least() for child in self.children)
            found.slot = next((c for c in reversed(found.children) if c.is_slot), None)
        return found

    @property
    def is_fixed(self) -> bool:
        """Return whether all these counts are fixed."""
        return self.count.is_fixed and (
            self.is_slot or all(child.is_fixed for child in self.children)
        )

    def names(self, kind: int) -> bool:
        """Return whether it, or a resource below it, is of this type."""
        return self.kind == kind or any(child.names(kind) for child in self.children)


def are_several_kinds(needs: tuple[Need, ...]) -> bool:
    """Return whether slots of several kinds stand side by side.

    Fluxion's traverser has no answer for this.
    """
    return len(needs) > 1 and sum(bool(need.labels) for need in needs) > 1


def exclusive_kinds(needs: tuple[Need, ...], *, is_here: bool = False) -> set[int]:
    """Return the types that ``needs`` want whole, including all below them.

    With ``is_here``, leave out needs that stand side by side with others: each of those has its
    own.
    """
    found: set[int] = set()
    if is_here and are_several_kinds(needs):
        return found
    for need in needs:
        if need.is_exclusive:
            found.add(need.kind)
        found |= exclusive_kinds(need.children, is_here=is_here)
    return found


def total_needs(needs: tuple[Need, ...]) -> dict[int, int]:
    """Return the least units of each type that ``needs`` ask for, including all below them."""
    found: dict[int, int] = {}
    for need in needs:
        least = need.count.minimum
        found[need.kind] = found.get(need.kind, 0) + least
        for kind, amount in need.below.items():
            found[kind] = found.get(kind, 0) + least * amount
    return found


class WalkRequest:
    """A whole request.

    ``exclusive_kinds`` are the types that the jobspec wants exclusively. ``slot_labels`` are the
    labels of its slots. ``has_several_kinds`` says that slots of several kinds stand side by side.
    ``plans`` caches plans of the vectorised matcher, by policy. ``has_pools`` says that the graph
    has pools of which jobs take shares.
    """

    __slots__ = (
        "_has_pools",
        "duration_s",
        "exclusive_kinds",
        "has_several_kinds",
        "jobspec",
        "key",
        "labels",
        "needs",
        "plans",
        "slot_labels",
        "totals",
    )

    def __init__(
        self, jobspec: Jobspec, type_number: Mapping[str, int], *, has_pools: bool
    ) -> None:
        if jobspec.size > SLOTS_MAX:
            raise InvalidJobspec(
                f"asks for more than {SLOTS_MAX:,} slots", where="resources", value=jobspec.size
            )
        self.jobspec = jobspec
        self._has_pools = has_pools
        self.exclusive_kinds: set[int] = set()
        self.labels: dict[int, str] = {}
        self.needs = self._compile(jobspec.resources, type_number, "resources")
        self.totals = total_needs(self.needs)
        self.slot_labels: frozenset[str] = frozenset().union(*(need.labels for need in self.needs))
        self.has_several_kinds = has_several_kinds(self.needs)
        self.duration_s = jobspec.held_s
        # Equal keys mean equal answers. The caches of the vectorised matcher use this key.
        self.plans: dict[str, Any] = {}
        tree = tuple(_key(resource) for resource in jobspec.resources)
        self.key: Hashable = tree, jobspec.where, jobspec.slot_where

    def _compile(
        self, resources: tuple[Resource, ...], type_number: Mapping[str, int], where: str
    ) -> tuple[Need, ...]:
        found: list[Need] = []
        for i, resource in enumerate(resources):
            here = f"{where}[{i}]"
            kind = type_number.get(resource.type)
            if kind is None:
                raise InvalidJobspec(
                    f"the graph has no resource of type {resource.type!r}",
                    where=f"{here}.type",
                    value=resource.type,
                )
            if resource.is_exclusive:
                self.exclusive_kinds.add(kind)
            if resource.label and not resource.is_slot:
                self.labels[kind] = resource.label
            found.append(
                Need(
                    resource,
                    kind,
                    self._compile(resource.with_, type_number, f"{here}.with"),
                    has_pools=self._has_pools,
                )
            )
        return tuple(found)


def has_several_kinds(needs: tuple[Need, ...]) -> bool:
    """Return whether slots of several kinds stand side by side here or anywhere below."""
    return are_several_kinds(needs) or any(has_several_kinds(need.children) for need in needs)


def _key(resource: Resource) -> Hashable:
    below = tuple(_key(child) for child in resource.with_)
    return resource.type, resource.count, resource.is_exclusive, below
