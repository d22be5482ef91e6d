"""A program of a Parsl user, with Parsl's packages and fluxqueue on its path."""

from __future__ import annotations

import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor

from fluxqueue.client.parsl_provider import FluxQueueProvider


@parsl.python_app  # type: ignore[untyped-decorator]
def square(number: int) -> int:
    """The work of a task."""
    return number * number


def main() -> None:
    """Run eight tasks in one block, and print their values."""
    provider = FluxQueueProvider(image="host", cpus=2, memory="64Mi", walltime="00:10:00")
    executor = HighThroughputExecutor(
        label="queue",
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        max_workers_per_node=1,
        provider=provider,
    )
    with parsl.load(Config(executors=[executor], run_dir=sys.argv[1], usage_tracking=0)):
        futures = [square(number) for number in range(8)]
        print([future.result(timeout=120) for future in futures], flush=True)
        (block,) = provider.resources
        (status,) = provider.status([block])
        print(block, status.state.name, flush=True)


main()
