"""Metrics of the webhook, in Prometheus' text format.

Called by ``fluxqueue_webhook.server``. The text is written by hand, because six lines need no
library in the small image.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate

from fluxqueue.workload.object_shape import SHAPES
from fluxqueue.workload.submitter import STAMPED

BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0)


class AdmissionMetrics:
    """Count reviews by kind and verdict, and how long they took.

    Parameters
    ----------
    further : kinds that have series, beside the built-in ones. A review may name any kind, and all
        others are one, without a name.
    """

    def __init__(self, further: Iterable[str] = ()) -> None:
        self._kinds = {*(kind for _, kind in (*SHAPES, *STAMPED)), *further}
        self._reviews: Counter[tuple[str, str]] = Counter()
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._total_s = 0.0

    def count(self, kind: str, verdict: str, duration_s: float) -> None:
        """Count one answered review that took ``duration_s`` seconds."""
        self._reviews[kind if kind in self._kinds else "", verdict] += 1
        self._buckets[bisect_left(BUCKETS_S, duration_s)] += 1
        self._total_s += duration_s

    def render(self) -> str:
        """Return all metrics as text."""
        name = "fluxqueue_webhook_admission"
        lines = [
            f"# HELP {name}_reviews_total Admission reviews answered.",
            f"# TYPE {name}_reviews_total counter",
        ]
        lines += [
            f'{name}_reviews_total{{kind="{kind}",verdict="{verdict}"}} {number}'
            for (kind, verdict), number in sorted(self._reviews.items())
        ]
        lines += [
            f"# HELP {name}_duration_seconds Time to answer a review.",
            f"# TYPE {name}_duration_seconds histogram",
        ]
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        lines += [
            f'{name}_duration_seconds_bucket{{le="{bound}"}} {number}'
            for bound, number in zip(bounds, accumulate(self._buckets), strict=True)
        ]
        lines += [
            f"{name}_duration_seconds_sum {self._total_s:.6f}",
            f"{name}_duration_seconds_count {sum(self._buckets)}",
        ]
        return "\n".join(lines) + "\n"
