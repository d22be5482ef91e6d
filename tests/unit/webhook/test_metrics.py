"""The counters as text."""

from __future__ import annotations

from fluxqueue_webhook.metrics import AdmissionMetrics


def test_buckets_are_cumulative_and_verdicts_apart() -> None:
    metrics = AdmissionMetrics()
    metrics.count("Job", "taken", 0.0004)
    metrics.count("Job", "taken", 0.001)
    metrics.count("Pod", "refused", 9.0)
    lines = metrics.render().splitlines()
    name = "fluxqueue_webhook_admission"
    for line in (
        f'{name}_reviews_total{{kind="Job",verdict="taken"}} 2',
        f'{name}_reviews_total{{kind="Pod",verdict="refused"}} 1',
        f'{name}_duration_seconds_bucket{{le="0.0005"}} 1',
        f'{name}_duration_seconds_bucket{{le="0.001"}} 2',
        f'{name}_duration_seconds_bucket{{le="1.0"}} 2',
        f'{name}_duration_seconds_bucket{{le="+Inf"}} 3',
        f"{name}_duration_seconds_count 3",
    ):
        assert line in lines
