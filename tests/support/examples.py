"""How many examples property tests draw: a fifth in ``make test``, all in ``make test-long``.

Called by ``tests/conftest.py``. CI runs both.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

ALL_VARIABLE = "FLUXQUEUE_TEST_ALL_EXAMPLES"
SHARE = 5
LEAST = 5


def draw_fewer(items: list[pytest.Item]) -> None:
    """Let each property test draw a fifth of its examples, where not all are asked for."""
    if os.environ.get(ALL_VARIABLE):
        return
    tests = {id(test): test for item in items if (test := getattr(item, "obj", None))}
    for test in filter(hypothesis.is_hypothesis_test, tests.values()):
        # Hypothesis' own pytest plugin finds the settings of a test in this attribute.
        written = test._hypothesis_internal_use_settings
        fewer = max(min(LEAST, written.max_examples), written.max_examples // SHARE)
        test._hypothesis_internal_use_settings = hypothesis.settings(written, max_examples=fewer)
