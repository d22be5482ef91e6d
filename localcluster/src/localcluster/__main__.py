"""``localcluster``: a cluster in the foreground until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from localcluster.client.access import read_kubeconfig
from localcluster.cluster import LocalCluster, LocalClusterConfig
from localcluster.errors import LocalClusterError
from localcluster.loops.options import ControllerOptions
from localcluster.nodes.pool import SimulatedPool
from localcluster.nodes.shape import NodeShape
from localcluster.nodes.simulated import SimulatedNodes

PORT_MAX = 65535
DESCRIPTION = "a simulated Kubernetes cluster, until Ctrl-C or SIGTERM"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line (of this process, by default)."""
    parser = argparse.ArgumentParser(prog="localcluster", description=DESCRIPTION)
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
    parser.add_argument(
        "--port", type=_port, default=0, help="port to listen on, 1 to 65535 (default: any)"
    )
    parser.add_argument(
        "--authorization",
        choices=("rbac", "always-allow"),
        default="rbac",
        help="who may do what: by roles and bindings (default), or all users everything",
    )
    parser.add_argument(
        "--audit-log", type=Path, help="write a line about each request to this file"
    )
    parser.add_argument(
        "--webhook-certificate",
        type=Path,
        metavar="FOLDER",
        help="show tls.crt and tls.key of this folder to webhooks",
    )
    parser.add_argument(
        "--quick", action="store_true", help="shorten Kubernetes' waiting times (back-off ...)"
    )
    parser.add_argument(
        "--node-grace",
        type=_seconds,
        metavar="SECONDS",
        help="silence after which a node counts as lost (default 40, with --quick 8)",
    )
    parser.add_argument(
        "--jobsets", action="store_true", help="add the JobSet kind and a simple controller for it"
    )
    parser.add_argument(
        "--run-programs",
        action="store_true",
        help="run the commands of pods on this machine, as you, without their images or isolation",
    )
    parser.add_argument(
        "--node-pool",
        type=_pool,
        action="append",
        default=[],
        metavar="NAME[,KEY=VALUE...]",
        help="nodes that are added when pods need them; max (4), delay and idle in seconds "
        "(1, 10), and all keys of --node",
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--api-only", action="store_true", help="the API server: no controllers, no nodes"
    )
    only.add_argument(
        "--join",
        type=Path,
        metavar="KUBECONFIG",
        help="the nodes: let them join this control plane, which has no kubelets of its own",
    )
    given = parser.parse_args(arguments)
    try:
        given.shapes = _shapes(given)
    except ValueError as error:
        parser.error(str(error))
    return given


def _port(text: str) -> int:
    if text.isdecimal() and int(text) <= PORT_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {PORT_MAX}")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def _shapes(given: argparse.Namespace) -> list[NodeShape]:
    """Return all nodes. Raise ValueError for an invalid node, and for two with one name."""
    if given.nodes < 0:
        raise ValueError(f"--nodes: {given.nodes} is less than 0")
    alike = {"cpu": given.cpu, "memory": given.memory, "gpus": given.gpus, "pods": given.pods}
    shapes = [NodeShape(f"node-{number}", **alike) for number in range(1, given.nodes + 1)]
    shapes += given.node
    seen: set[str] = set()
    for shape in shapes:
        if shape.name in seen:
            raise ValueError(f"two nodes have the name {shape.name!r}")
        seen.add(shape.name)
    return shapes


def _pool(text: str) -> SimulatedPool:
    """Parse ``gpu,max=4,delay=2,cpu=16,gpus=4,tier=demo``."""
    own = {"max": "4", "delay": "1", "idle": "10"}
    name, *pairs = text.split(",")
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key in own:
            own[key] = value
    rest = [pair for pair in pairs if pair.partition("=")[0] not in own]
    try:
        return SimulatedPool(
            _shape(",".join((name, *rest))),
            int(own["max"]),
            float(own["delay"]),
            float(own["idle"]),
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error


def _shape(text: str) -> NodeShape:
    """Parse ``pi-1,cpu=16,memory=64Gi,tier=demo``."""
    name, *pairs = text.split(",")
    given: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not (key and separator):
            raise argparse.ArgumentTypeError(f"{pair!r} in {text!r} is not KEY=VALUE")
        given[key] = value
    counts = {key: given.pop(key, default) for key, default in (("gpus", "0"), ("pods", "110"))}
    for key, count in counts.items():
        if not count.isdecimal():
            raise argparse.ArgumentTypeError(f"{key}={count} in {text!r} is no whole number")
    cpu, memory = given.pop("cpu", "32"), given.pop("memory", "128Gi")
    try:
        return NodeShape(
            name, cpu, memory, gpus=int(counts["gpus"]), pods=int(counts["pods"]), labels=given
        )
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


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
    if arguments.join is not None:
        access = read_kubeconfig(arguments.join)
        pools = arguments.node_pool
        async with SimulatedNodes(access, arguments.shapes, _options(arguments), pools):
            _say(f"ready {access.server}")
            await done.wait()
        return
    is_whole = not arguments.api_only
    config = LocalClusterConfig(
        data_dir=arguments.data_dir,
        host=arguments.host,
        port=arguments.port,
        nodes=arguments.shapes,
        run_controllers=is_whole,
        run_scheduler=is_whole,
        run_nodes=is_whole,
        audit_log=arguments.audit_log,
        webhook_certificate=arguments.webhook_certificate,
        has_rbac=arguments.authorization == "rbac",
        has_jobsets=arguments.jobsets,
        runs_programs=arguments.run_programs,
        node_pools=arguments.node_pool,
        options=_options(arguments),
    )
    async with LocalCluster(config) as cluster:
        if arguments.kubeconfig_out is not None:
            cluster.write_kubeconfig(arguments.kubeconfig_out)
        _say(f"ready {cluster.url}")
        await done.wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Parse the arguments and run."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    arguments = parse()
    try:
        asyncio.run(_run(arguments))
    except socket.gaierror as error:
        sys.exit(f"localcluster: --host {arguments.host}: {error.strerror}")
    except (LocalClusterError, OSError) as error:
        sys.exit(f"localcluster: {error}")


if __name__ == "__main__":
    main()
