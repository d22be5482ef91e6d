"""Match policies: which of the sufficient resources a job gets.

The names are Fluxion's (``first``, ``lonode``, ...) or a custom string of Fluxion's options. Two
policies are our own: ``pack`` (fewest and fullest nodes) and ``spread`` (emptiest nodes). The
matcher uses them, per request if the request names one. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fluxqueue.errors import InvalidSettings

NODE_FACTOR = 10_000
"""Weight of a node's id against the ids below it.

Source: flux-sched, dfu_match_policy_factory.cpp.
"""

MAX_SCORE = 1 << 62
"""Sort keys have 64 bits. Graphs with larger ids are answered by the reference walk."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One policy.

    ``is_high`` prefers high ids. ``is_node_centric`` compares the node's id first.
    ``is_node_exclusive`` books every touched node whole. ``stops_early`` takes the first sufficient
    candidates, in the order of free resources (Fluxion's ``stop_on_1_matches``). ``occupancy`` is 1
    for fullest nodes first, -1 for emptiest first, and 0 for Fluxion's policies.
    """

    name: str
    is_high: bool = True
    is_node_centric: bool = False
    is_node_exclusive: bool = False
    stops_early: bool = False
    occupancy: int = 0

    def of_whole_nodes(self) -> Policy:
        """Return the policy for a request that takes every touched node whole."""
        if self.is_node_exclusive:
            return self
        return replace(self, name=f"{self.name}, whole nodes", is_node_exclusive=True)


POLICIES = {
    policy.name: policy
    for policy in (
        Policy("first", is_node_centric=True, stops_early=True),
        Policy("firstnodex", is_node_centric=True, is_node_exclusive=True, stops_early=True),
        Policy("high"),
        Policy("low", is_high=False),
        Policy("lonode", is_high=False, is_node_centric=True),
        Policy("hinode", is_node_centric=True),
        Policy("lonodex", is_high=False, is_node_centric=True, is_node_exclusive=True),
        Policy("hinodex", is_node_centric=True, is_node_exclusive=True),
        Policy("pack", is_high=False, is_node_centric=True, occupancy=1),
        Policy("spread", is_high=False, is_node_centric=True, occupancy=-1),
    )
}
_OPTIONS = {
    "node_centric": "is_node_centric",
    "node_exclusive": "is_node_exclusive",
    "stop_on_1_matches": "stops_early",
}


def parse_policy(text: str) -> Policy:
    """Return the policy called ``text``, or one made of options.

    Options look like ``policy=low node_centric=true``.

    Raises
    ------
    InvalidSettings
        An unknown name or option, a value that is not a boolean, or no ``policy=``.
    """
    known = POLICIES.get(text)
    if known is not None:
        return known
    values: dict[str, bool] = {}
    high: bool | None = None
    for option in text.split():
        name, _, value = option.partition("=")
        if name == "policy" and value in ("high", "low"):
            # Fluxion gives precedence to high if both are given.
            high = value == "high" or bool(high)
        elif name in _OPTIONS and value in ("true", "false"):
            values.setdefault(_OPTIONS[name], value == "true")
        else:
            raise InvalidSettings(
                f"{option!r} is no match policy",
                where="match-policy",
                value=text,
                hint=f"one of {', '.join(POLICIES)}, or policy=low node_centric=true ...",
            )
    if high is None:
        raise InvalidSettings("needs policy=high or policy=low", where="match-policy", value=text)
    return Policy(text, is_high=high, **values)
