"""One ResourceSharingPolicy as a rule: which nodes, in which order, and by which policy.

The controller makes rules to check a spec before it is stored, and the worker makes them from rows.
A spec must fit the definition in ``chart/crds/resourcesharingpolicies.yaml``. Policies of other
packages are found by their entry points.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.label_selector import LabelSelection, read_selector
from fluxqueue.policy.sharing.built_in import BUILT_IN
from fluxqueue.policy.sharing.interface import SharingPolicy
from fluxqueue.policy.spec_fields import as_mapping, as_whole

ENTRY_POINTS = "fluxqueue.sharing_policies"
"""The group of entry points. Each is called with ``spec.parameters``, and returns a policy."""

ORDER_DEFAULT, ORDER_MAX = 1000, 1_000_000

SAID_MAX = 300
"""The longest message of an error in another package that is shown."""


@dataclass(frozen=True, slots=True)
class SharingRule:
    """The nodes of a policy, and the policy. Of several rules for a node, the first one counts."""

    name: str
    order: int
    nodes: LabelSelection
    policy: SharingPolicy

    @property
    def place(self) -> tuple[int, str]:
        """Return the place among the rules: the lowest order first, then by name."""
        return self.order, self.name


def read_sharing_rule(name: str, spec: object) -> SharingRule:
    """Read the spec of a ResourceSharingPolicy.

    Raises
    ------
    InvalidInput
        A field is not valid, or the policy is not installed here. ``where`` is its path.
    """
    found = as_mapping(spec, "spec")
    order = as_whole(found.get("order", ORDER_DEFAULT), "spec.order", 0, ORDER_MAX)
    nodes = read_selector(found.get("nodeSelector"), "spec.nodeSelector")
    return SharingRule(name, order, nodes, _policy(found))


@lru_cache(maxsize=2)
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """Return the policies of packages on ``path``. Cached: it reads the data of all packages."""
    del path
    return entry_points(group=ENTRY_POINTS)


def _policy(spec: Mapping[str, Any]) -> SharingPolicy:
    name = spec.get("policy")
    if isinstance(name, str) and name in BUILT_IN:
        return BUILT_IN[name](spec.get(name))
    installed = _installed(tuple(sys.path))
    found = [one for one in installed if one.name == name]
    if not found:
        known = sorted({*BUILT_IN, *(one.name for one in installed)})
        raise InvalidInput(
            f"{name!r} is no installed sharing policy",
            where="spec.policy",
            value=name,
            hint=f"one of {', '.join(known)}",
        )
    try:
        policy: SharingPolicy = found[0].load()(dict(spec.get("parameters") or {}))
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        text = f"{type(error).__name__}: {error}"[:SAID_MAX]
        raise InvalidInput(
            f"the policy {name!r} refuses it: {text}",
            where="spec.parameters",
            value=spec.get("parameters"),
        ) from error
    if not callable(getattr(policy, "grant", None)):
        raise InvalidInput(
            f"{name!r} makes {type(policy).__name__}, which has no method grant",
            where="spec.policy",
            value=name,
            hint="return an object as fluxqueue.policy.sharing.SharingPolicy says",
        )
    return policy
