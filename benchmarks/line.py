"""One line of a benchmark's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """What was measured, its goal, whether more is better, and what it was one round before."""

    what: str
    value: float
    unit: str
    goal: float | None = None
    is_more_better: bool = True
    before: str = ""

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached. What has none always is."""
        if self.goal is None:
            return True
        return self.value >= self.goal if self.is_more_better else self.value <= self.goal

    def render(self, digits: int = 1) -> str:
        """As text."""
        measured = f"{self.what:<58} {self.value:>10.{digits}f} {self.unit}"
        before = f"  (before: {self.before})" if self.before else ""
        if self.goal is None:
            return measured.rstrip() + before
        sign = ">=" if self.is_more_better else "<="
        verdict = "ok" if self.is_reached else "MISSED"
        return f"{measured:<{58 + 12 + 12}} {sign} {self.goal:g} {verdict}{before}"
