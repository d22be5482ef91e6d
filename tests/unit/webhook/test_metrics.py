"""The counters as text."""

from __future__ import annotations

from fluxqueue_webhook.review_metrics import AdmissionMetrics


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


def test_kinds_that_a_request_makes_up_are_one() -> None:
    """Further kinds of the settings have series of their own. No name can break the format."""
    metrics = AdmissionMetrics(["Workflow"])
    for number in range(300):
        metrics.count(f'x{number}"}} 1\nup', "untouched", 0.1)
    metrics.count("Workflow", "taken", 0.1)
    reviews = [line for line in metrics.render().splitlines() if "reviews_total{" in line]
    name = "fluxqueue_webhook_admission_reviews_total"
    assert reviews == [
        f'{name}{{kind="",verdict="untouched"}} 300',
        f'{name}{{kind="Workflow",verdict="taken"}} 1',
    ]
