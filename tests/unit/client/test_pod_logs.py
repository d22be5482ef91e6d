"""Which pod a line of a log is of, whatever the author of the pod has written on it."""

from __future__ import annotations

import pytest

from fluxqueue.client.pod_logs import index_of

INDEX = "batch.kubernetes.io/job-completion-index"


@pytest.mark.parametrize(
    ("text", "index"),
    [("0", 0), ("17", 17), ("²", None), ("٣", None), ("9" * 5000, None), ("-1", None), ("", None)],
)
def test_an_index_is_a_number_or_nothing(text: str, index: int | None) -> None:
    """One pod with an odd annotation must not end the logs of all others."""
    assert index_of({"metadata": {"annotations": {INDEX: text}}}) == index
    assert index_of({"metadata": {}}) is None
