"""Waiting for conditions. Tests never sleep for a fixed time and hope."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Answer = TypeVar("Answer")

WAIT_S = 120.0
"""Long enough for a machine several times slower, and for the garbage collector of Kubernetes,
which looks for new kinds every 30 seconds."""


async def eventually(
    look: Callable[[], Awaitable[Answer]], what: str, *, timeout_s: float = WAIT_S
) -> Answer:
    """Give the first truthy answer of ``look``. AssertionError naming ``what`` when time is up."""
    deadline = time.monotonic() + timeout_s
    while not (answer := await look()):
        assert time.monotonic() < deadline, f"not within {timeout_s}s: {what}"
        await asyncio.sleep(0.1)
    return answer
