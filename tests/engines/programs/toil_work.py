"""The job function of ``toil_workflow``. Toil sends this module to its workers."""

from __future__ import annotations

import time
from typing import Any


def work(job: Any, seconds: float) -> str:
    """Take some time, and write to the log of the leader."""
    time.sleep(seconds)
    job.log("logs: worked in a pod")
    return "worked"
