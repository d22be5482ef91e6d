"""``python -m fluxqueue_webhook``: the admission webhook as its own process.

It ends cleanly on SIGTERM and SIGINT. It exits with 2 if its settings cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, describe_levels
from fluxqueue.process import logs
from fluxqueue.process.shared_key import read_key
from fluxqueue.workload import labels
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue_webhook.server import ServerConfig, WebhookServer

SWITCH_S = 0.001
"""After this time, a thread that computes lets another one run (seconds; Python's default is 5 ms).

The event loop competes with the threads of admissions, and waits for one of them after each read.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal stops the process. Return the exit code."""
    options = _parse(arguments)
    sys.setswitchinterval(SWITCH_S)
    logs.set_up(options.log_level, as_json=options.log_json)
    try:
        placement_key = read_key(options.placement_key_file, "--placement-key-file")
        settings = AdmitSettings.parse(vars(options), placement_key)
    except InvalidSettings as error:
        return _refuse(error)
    config = ServerConfig(
        cert_dir=options.cert_dir,
        client_ca=options.client_ca,
        host=options.host,
        port=options.port,
        drain_s=options.drain,
        admit=settings,
    )
    try:
        asyncio.run(_serve(config))
    except InvalidSettings as error:
        return _refuse(error)
    return 0


def _refuse(error: InvalidSettings) -> int:
    print(f"webhook: {error}", file=sys.stderr)
    return 2


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="webhook", description="fluxqueue's admission webhook")
    parser.add_argument("--cert-dir", type=Path, required=True, help="holds tls.crt and tls.key")
    parser.add_argument(
        "--client-ca",
        type=Path,
        help="file with the CA of the API servers' client certificates; all other requests for"
        " admission are refused (default: none, and anyone may ask)",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104
    parser.add_argument("--port", type=int, default=8443, help="0 takes a free one")
    parser.add_argument(
        "--own-namespace",
        default=os.environ.get("POD_NAMESPACE", labels.OWN_NAMESPACE),
        help="never managed (default: $POD_NAMESPACE)",
    )
    parser.add_argument(
        "--levels",
        default=os.environ.get("FLUXQUEUE_LEVELS") or describe_levels(DEFAULT_LEVELS),
        help="the cluster's levels, top first: NAME=NODE-LABEL,... (default: $FLUXQUEUE_LEVELS)",
    )
    parser.add_argument(
        "--own-user",
        action="append",
        default=[],
        help="account of another part of fluxqueue, which may write all of a FluxJob; repeatable",
    )
    parser.add_argument(
        "--shared-user",
        action="append",
        default=[],
        help="account that parts of fluxqueue share with a person; what the parts write has their"
        " field manager; repeatable",
    )
    parser.add_argument(
        "--owner-kinds",
        default=os.environ.get("FLUXQUEUE_OWNER_KINDS", ""),
        help="further kinds that make pods, a JSON list (default: $FLUXQUEUE_OWNER_KINDS)",
    )
    parser.add_argument(
        "--aliases",
        default=os.environ.get("FLUXQUEUE_ALIASES", "kueue"),
        help="keys that stand for those of fluxqueue: kueue, ALIAS=KEY, with commas, or none"
        " (default: $FLUXQUEUE_ALIASES, or kueue)",
    )
    parser.add_argument(
        "--queue-names",
        default=os.environ.get("FLUXQUEUE_QUEUE_NAMES", ""),
        help="LOCALQUEUE=FLUXQUEUE, with commas (default: $FLUXQUEUE_QUEUE_NAMES)",
    )
    parser.add_argument(
        "--gated-namespaces",
        default=os.environ.get("FLUXQUEUE_GATED_NAMESPACES", ""),
        help="namespaces in which Jobs wait with gated pods, with commas"
        " (default: $FLUXQUEUE_GATED_NAMESPACES)",
    )
    parser.add_argument(
        "--gated-queues",
        default=os.environ.get("FLUXQUEUE_GATED_QUEUES", ""),
        help="FluxQueues in which Jobs wait with gated pods, with commas"
        " (default: $FLUXQUEUE_GATED_QUEUES)",
    )
    parser.add_argument(
        "--kueue-suspension",
        choices=("queue", "author"),
        default=os.environ.get("FLUXQUEUE_KUEUE_SUSPENSION") or "queue",
        help="what resumes what is created suspended with Kueue's label: the queue, or its author"
        " (default: $FLUXQUEUE_KUEUE_SUSPENSION, or queue)",
    )
    parser.add_argument(
        "--controllers",
        default=os.environ.get("FLUXQUEUE_CONTROLLERS", ""),
        help="accounts that hand on the submitter of a template, with commas; only where the"
        " admission policies are installed (default: $FLUXQUEUE_CONTROLLERS, or none)",
    )
    parser.add_argument(
        "--submitter-accounts",
        default=os.environ.get("FLUXQUEUE_SUBMITTER_ACCOUNTS", ""),
        help="accounts of GitOps tools, with commas (default: $FLUXQUEUE_SUBMITTER_ACCOUNTS)",
    )
    parser.add_argument(
        "--submitter-annotation",
        default=os.environ.get("FLUXQUEUE_SUBMITTER_ANNOTATION", ""),
        help="annotation in which they name a user (default: $FLUXQUEUE_SUBMITTER_ANNOTATION)",
    )
    parser.add_argument(
        "--placement-key-file",
        default=os.environ.get("FLUXQUEUE_PLACEMENT_KEY_FILE", ""),
        help="file with the key that the workers share; pods that they place get their node at"
        " their creation (default: $FLUXQUEUE_PLACEMENT_KEY_FILE, or none)",
    )
    parser.add_argument(
        "--drain", type=float, default=0.0, help="seconds to answer on after SIGTERM"
    )
    parser.add_argument("--log-level", default="INFO")
    parser.add_argument("--log-json", action="store_true", help="one JSON object per line")
    return parser.parse_args(arguments)


async def _serve(config: ServerConfig) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with WebhookServer(config) as server:
        print(f"ready {server.url}", flush=True)
        await stop.wait()


if __name__ == "__main__":
    sys.exit(main())
