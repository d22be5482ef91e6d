"""What a check reports: one ``Finding`` for each broken invariant or warning."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """``BROKEN`` makes the check fail. ``WARNING`` asks the administrator to look.

    ``FIGURE`` says how good the plans are.
    """

    BROKEN = "broken"
    WARNING = "warning"
    FIGURE = "figure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken invariant (design: the invariants), and where.

    ``may_pass`` marks a difference between rows and cluster that is legal for a moment, because the
    two cannot be read at one instant. It counts once it has lasted for the whole patience.
    """

    invariant: str
    subject: str
    detail: str
    severity: Severity = Severity.BROKEN
    may_pass: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Return the identity of a difference, which stays the same while it lasts."""
        return self.invariant, self.subject

    def to_json(self) -> dict[str, Any]:
        """Return the form of ``fluxqueue check --json``."""
        return {
            "invariant": self.invariant,
            "subject": self.subject,
            "detail": self.detail,
            "severity": str(self.severity),
        }
