"""``python -m fluxqueue.localcluster``: a cluster in the foreground until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import signal
import sys
from pathlib import Path

from fluxqueue.localcluster.cluster import LocalCluster, LocalClusterConfig, NodeShape
from fluxqueue.localcluster.controllers.options import ControllerOptions


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fluxqueue.localcluster", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="keep the cluster here (default: memory)")
    parser.add_argument("--kubeconfig-out", type=Path, help="write an administrator's kubeconfig")
    parser.add_argument("--nodes", type=int, default=3, help="number of nodes (default 3)")
    parser.add_argument("--cpu", default="32", help="cpu of each node (default 32)")
    parser.add_argument("--memory", default="128Gi", help="memory of each node (default 128Gi)")
    parser.add_argument("--gpus", type=int, default=0, help="nvidia.com/gpu of each node")
    parser.add_argument("--pods", type=int, default=110, help="pods per node (default 110)")
    parser.add_argument(
        "--node",
        type=_shape,
        action="append",
        default=[],
        metavar="NAME[,KEY=VALUE...]",
        help="a further node; cpu, memory, gpus and pods shape it, any other key is a label",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on, or a name of this machine; the kubeconfig names it too "
        "(default 127.0.0.1)",
    )
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any)")
    parser.add_argument(
        "--quick", action="store_true", help="shorten Kubernetes' waiting times (back-off ...)"
    )
    parser.add_argument(
        "--node-grace",
        type=float,
        metavar="SECONDS",
        help="silence after which a node counts as lost (default 40, with --quick 8)",
    )
    return parser.parse_args()


def _shape(text: str) -> NodeShape:
    """Read ``pi-1,cpu=16,memory=64Gi,tier=demo``."""
    name, *pairs = text.split(",")
    given: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not (key and separator):
            raise argparse.ArgumentTypeError(f"{pair!r} in {text!r} is not KEY=VALUE")
        given[key] = value
    try:
        return NodeShape(
            name,
            cpu=given.pop("cpu", "32"),
            memory=given.pop("memory", "128Gi"),
            gpus=int(given.pop("gpus", "0")),
            pods=int(given.pop("pods", "110")),
            labels=given,
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: gpus and pods are whole numbers") from error


def _options(arguments: argparse.Namespace) -> ControllerOptions:
    options = ControllerOptions.quick() if arguments.quick else ControllerOptions()
    if arguments.node_grace is None:
        return options
    return dataclasses.replace(options, node_grace_s=arguments.node_grace)


async def _run(arguments: argparse.Namespace) -> None:
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, done.set)
    shapes = [
        NodeShape(
            f"node-{number}",
            cpu=arguments.cpu,
            memory=arguments.memory,
            gpus=arguments.gpus,
            pods=arguments.pods,
        )
        for number in range(1, arguments.nodes + 1)
    ]
    shapes += arguments.node
    config = LocalClusterConfig(
        data_dir=arguments.data_dir,
        host=arguments.host,
        port=arguments.port,
        nodes=shapes,
        options=_options(arguments),
    )
    async with LocalCluster(config) as cluster:
        if arguments.kubeconfig_out is not None:
            cluster.write_kubeconfig(arguments.kubeconfig_out)
        sys.stdout.write(f"ready {cluster.url}\n")
        sys.stdout.flush()
        await done.wait()


def main() -> None:
    """Parse the arguments and run."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    asyncio.run(_run(_arguments()))


if __name__ == "__main__":
    main()
