"""The flow of ``prefect_worker``. Its pods load it from this file."""

from __future__ import annotations

import time

from prefect import flow


@flow(log_prints=True)
def work(seconds: float) -> None:
    """Take some time."""
    time.sleep(seconds)
    print("worked")
