"""Which recorded scenarios of a real API server the embedded one claims to answer alike.

``CLAIMS`` names each claimed scenario; ``differences`` maps the number of a step that differs to
why, ``by_object`` compares watch events per object (controllers work on several objects at once,
and which of them comes first is not fixed).  ``NOT_SERVED`` says what is not there and what it
answers instead.  Each scenario of the recordings is in exactly one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Claim:
    """How far a scenario is answered alike."""

    differences: dict[int, str] = field(default_factory=dict)
    by_object: bool = False
    is_slow: bool = False


CLAIMS: dict[str, Claim] = {}

NOT_SERVED: dict[str, str] = {}
