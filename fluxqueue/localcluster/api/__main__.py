"""Run the API server alone (no controllers, scheduler or nodes): for development."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from fluxqueue.localcluster.api.server import ApiServer, ApiServerConfig


async def _serve(config: ApiServerConfig, kubeconfig: Path | None) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    async with ApiServer(config) as server:
        if kubeconfig is not None:
            server.write_kubeconfig(kubeconfig)
        sys.stdout.write(f"ready {server.url}\n")
        sys.stdout.flush()
        await done.wait()


def main() -> None:
    """Parse arguments, serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--kubeconfig-out", type=Path)
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    config = ApiServerConfig(data_dir=arguments.data_dir, port=arguments.port)
    asyncio.run(_serve(config, arguments.kubeconfig_out))


if __name__ == "__main__":
    main()
