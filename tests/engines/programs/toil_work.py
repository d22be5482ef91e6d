"""The job function of ``toil_workflow``. Toil sends this module to its workers."""

from __future__ import annotations

import time
from typing import Any


def work(_: Any, seconds: float) -> str:
    """Take some time."""
    time.sleep(seconds)
    return "worked"
