"""The requests that did not fit in one walk, and whether another one is at least as large. Pure.

``cycle`` keeps them. Free resources only shrink during a walk, so a request that did not fit never
fits later, and neither does a larger one: more of the same units, larger units, or a longer time. A
walk of a deep queue therefore searches for few of its jobs.
"""

from __future__ import annotations

from collections.abc import Hashable

from fluxqueue.graph.match.by_shares import why_busy
from fluxqueue.graph.match.shares.ask import Ask, Extent
from fluxqueue.jobspec import Jobspec


class FailedSearches:
    """Requests that do not fit, each with its reason."""

    def __init__(self) -> None:
        self._reasons: dict[Ask, str] = {}
        # By identity, because a walk asks this of every job. The value keeps the key alive, so no
        # other object can get its id.
        self._seen: dict[int, tuple[Ask, str]] = {}
        self._extents: dict[Hashable, list[Extent]] = {}

    def clear(self) -> None:
        """Forget all, because something was given back."""
        self._reasons.clear()
        self._seen.clear()
        self._extents.clear()

    def add(self, ask: Ask, reason: str) -> None:
        """Remember that ``ask`` does not fit."""
        self._reasons[ask] = reason
        extent = ask.extent
        if extent is not None:
            known = self._extents.setdefault(extent.kind, [])
            known[:] = [one for one in known if not extent.is_within(one)]
            known.append(extent)

    def known(self, ask: Ask) -> str | None:
        """Return the reason if an equal request did not fit."""
        return self._reasons.get(ask)

    def why(self, ask: Ask, request: Jobspec) -> str | None:
        """Return why ``request`` does not fit if an equal or a smaller one did not, or None."""
        seen = self._seen.get(id(ask))
        if seen is not None:
            return seen[1]
        reason = self._reasons.get(ask)
        if reason is None:
            reason = self._why_not_smaller(ask.extent, request)
        if reason is not None:
            self._seen[id(ask)] = ask, reason
        return reason

    def _why_not_smaller(self, extent: Extent | None, request: Jobspec) -> str | None:
        if extent is None:
            return None
        for one in self._extents.get(extent.kind, ()):
            if one.is_within(extent):
                return why_busy(request)
        return None
