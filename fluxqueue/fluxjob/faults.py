"""Faults: what of a workload's objects cannot be used since its author changed it after admission.

Made where objects are read (``workload.last_good``), kept by rows (``fluxjob.facts``), shown as
the condition ``InputValid`` and in the view ``quarantine``. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ANNOTATION, TEMPLATE, UNREADABLE = "InvalidAnnotation", "InvalidTemplate", "Unreadable"
"""A key under ``fluxqueue/``. What its pods ask for. The object as a whole. The words of the
condition and of the Event."""

TOLD_MAX = 5
"""Faults that one sentence names."""
TEXT_MAX = 600
"""Characters of one fault's sentence."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One value that cannot be used.

    ``reason`` is one of the words above, ``where`` the key or the field, ``message`` names field,
    value and way out, ``instead`` says what counts in its place.
    """

    reason: str
    where: str
    message: str
    instead: str

    def __str__(self) -> str:
        return f"{self.message}; {self.instead}"


def as_text(error: Exception) -> str:
    """Return the sentence of an error, without the characters that a row cannot hold."""
    said = str(error).partition("\n")[0].replace("\0", "")
    return (said or type(error).__name__)[:TEXT_MAX]


def described(faults: Sequence[Fault]) -> tuple[str, str]:
    """Return the word and the sentence for faults. There is at least one."""
    told = [str(fault) for fault in faults[:TOLD_MAX]]
    if len(faults) > TOLD_MAX:
        told.append(f"and {len(faults) - TOLD_MAX} more")
    return faults[0].reason, "; ".join(told)
