"""Any request is admitted, refused in words or left alone: never a crash, never for long.

Untyped: an API server checks custom resources only after mutating admission, and anything may be
sent to the port. Typed: what an API server takes, with the worst values. What is drawn stands in
``tests/support/hostile_reviews.py``.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue_webhook.admit import admit
from tests.support.hostile_reviews import typed, untyped

COUNT = int(os.environ.get("FLUXQUEUE_TEST_HOSTILE", "3000"))
"""How many requests of each sort. ``make adversary`` draws 50,000."""
CPU_MAX_S = 0.5


@pytest.mark.cases_long("the other kinds")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draw", [untyped, typed])
def test_a_hostile_request_is_answered(
    draw: Callable[[random.Random], dict[str, Any]], seed: int
) -> None:
    """In words, within half a second of processor time, and as JSON that can be sent."""
    chance = random.Random(seed)
    refused = 0
    for number in range(COUNT // 3):
        review = draw(chance)
        body = json.dumps(review)
        began = time.process_time()
        try:
            answer = admit(orjson.loads(body), all_ask=chance.random() < 0.2)
            orjson.dumps(answer.review)
            refused += answer.verdict == "refused"
        except (InvalidInput, orjson.JSONDecodeError):  # the server answers 400
            refused += 1
        except Exception as error:
            error.add_note(f"seed {seed}, number {number}: {repr(review)[:3000]}")
            raise
        assert time.process_time() - began < CPU_MAX_S, repr(review)[:3000]
    assert COUNT // 30 < refused < COUNT // 3
