"""Whatever an API server takes in 3 MB costs admission at most half a second of processor time.

What would cost more is refused with field, value and way out.
"""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.object_shape import VALUES_MAX, check_size
from fluxqueue_webhook.admit import admit
from fluxqueue_webhook.bounded import CPU_MAX_S
from tests.support.large_objects import LARGE, MAX_BYTES, long_notes
from tests.support.workloads import admission_review


def _admit(obj: Any) -> tuple[str, str]:
    """Verdict and reason. The least of two costs is judged."""
    body = json.dumps(admission_review(obj)).encode()
    costs = []
    for _ in range(2):
        began = time.process_time()
        answer = admit(orjson.loads(body))
        orjson.dumps(answer.review)
        costs.append(time.process_time() - began)
    assert min(costs) <= CPU_MAX_S, costs
    return answer.verdict, answer.why


@pytest.mark.cases_long("other objects")
@pytest.mark.parametrize("name", LARGE)
def test_a_large_object_is_answered_in_time(name: str) -> None:
    obj = LARGE[name]()
    assert len(json.dumps(obj)) <= MAX_BYTES
    verdict, why = _admit(obj)
    if verdict == "refused":
        field, _, reason = why.partition(": ")
        assert field.startswith(("spec.", "metadata.", "constraints", "resources")), why
        assert ". Fix: " in reason, f"no way out: {why}"


@pytest.mark.long("many cases at once, for seconds of processor time")
def test_long_texts_of_each_annotation() -> None:
    """A megabyte that is nearly right."""
    for name, obj in long_notes().items():
        verdict, why = _admit(obj)
        assert verdict in ("refused", "taken"), (name, verdict)
        assert len(why) < 4000, name


def test_the_field_that_is_too_large_is_named() -> None:
    """Down to the list, or to the map with many members of its own."""
    many: dict[str, Any] = {f"k{n}": "" for n in range(VALUES_MAX)}
    for obj, where in (
        ({"metadata": {"labels": many}, "spec": {"a": [1] * 9}}, "metadata.labels"),
        (
            {"spec": {"template": {"spec": {"volumes": [{}] * VALUES_MAX}}}},
            "spec.template.spec.volumes",
        ),
        ({"spec": {f"f{n}": [1] * 60_000 for n in range(3)}}, "spec"),
    ):
        with pytest.raises(InvalidInput, match="more than 100000 values") as caught:
            check_size(obj, "")
        assert caught.value.where == where
    check_size({"spec": {"a": [1] * (VALUES_MAX - 10)}}, "")
