"""``python -m fluxqueue_webhook``: the admission webhook as its own process.

It ends cleanly on SIGTERM and SIGINT. It exits with 2 if its settings cannot be used.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fluxqueue.errors import InvalidSettings
from fluxqueue.process import logs
from fluxqueue.workload import labels
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue_webhook.server import ServerConfig, WebhookServer

SWITCH_S = 0.001
"""After this time, a thread that computes lets another one run (seconds; Python's default is 5 ms).

The event loop competes with the threads of admissions, and waits for one of them after each read.
"""


_NAMES: Mapping[str, Any] = {"action": "append"}

OPTIONS: tuple[tuple[str, str, Any, str, Mapping[str, Any]], ...] = (
    ("--cert-dir", "", None, "holds tls.crt and tls.key", {"type": Path, "required": True}),
    (
        "--client-ca", "", None,
        "file with the CA of the API servers' client certificates; without it anyone may ask",
        {"type": Path},
    ),
    ("--host", "", "0.0.0.0", "address to listen on", {}),  # noqa: S104
    ("--port", "", 8443, "0 takes a free one", {"type": int}),
    ("--own-namespace", "POD_NAMESPACE", labels.OWN_NAMESPACE, "never managed", {}),
    (
        "--levels", "FLUXQUEUE_LEVELS", "region,zone,block,rack,nvlink",
        "the cluster's levels, top first: NAME=NODE-LABEL,...", {},
    ),
    (
        "--own-user", "", [],
        "account of another part of fluxqueue, which may write all of a FluxJob; repeatable",
        _NAMES,
    ),
    (
        "--shared-user", "", [],
        "account that a person shares with parts of fluxqueue, which their field managers tell",
        _NAMES,
    ),
    (
        "--owner-kinds", "FLUXQUEUE_OWNER_KINDS", "",
        "further kinds that make pods, a JSON list", {},
    ),
    (
        "--aliases", "FLUXQUEUE_ALIASES", "kueue",
        "keys that stand for those of fluxqueue: kueue, ALIAS=KEY, with commas, or none", {},
    ),
    ("--queue-names", "FLUXQUEUE_QUEUE_NAMES", "", "LOCALQUEUE=FLUXQUEUE, with commas", {}),
    (
        "--gated-namespaces", "FLUXQUEUE_GATED_NAMESPACES", "",
        "namespaces in which Jobs wait with gated pods, with commas", {},
    ),
    (
        "--gated-queues", "FLUXQUEUE_GATED_QUEUES", "",
        "FluxQueues in which Jobs wait with gated pods, with commas", {},
    ),
    (
        "--kueue-suspension", "FLUXQUEUE_KUEUE_SUSPENSION", "queue",
        "what resumes what is created suspended with Kueue's label: the queue, or its author",
        {"choices": ("queue", "author")},
    ),
    (
        "--controllers", "FLUXQUEUE_CONTROLLERS", "",
        "accounts that hand on the submitter of a template, where admission policies guard it",
        {},
    ),
    (
        "--submitter-accounts", "FLUXQUEUE_SUBMITTER_ACCOUNTS", "",
        "accounts of GitOps tools, with commas", {},
    ),
    (
        "--submitter-annotation", "FLUXQUEUE_SUBMITTER_ANNOTATION", "",
        "annotation in which they name a user", {},
    ),
    (
        "--placement-key-file", "FLUXQUEUE_PLACEMENT_KEY_FILE", "",
        "file with the key of the workers, whose placed pods get their nodes at their creation",
        {},
    ),
    ("--drain", "", 0.0, "seconds to answer on after SIGTERM", {"type": float}),
    ("--log-level", "", "INFO", "lowest level that is logged", {}),
    ("--log-json", "", False, "one JSON object per line", {"action": "store_true"}),
)  # fmt: skip
"""The options: flag, environment variable, default, help, and what else ``argparse`` must know.

The variables are those of ``process.settings``. Its table is not loaded here.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal stops the process. Return the exit code."""
    options = _parse(arguments)
    sys.setswitchinterval(SWITCH_S)
    logs.set_up(options.log_level, as_json=options.log_json)
    try:
        settings = AdmitSettings.parse(vars(options))
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
    for flag, variable, default, words, more in OPTIONS:
        if variable:
            # As of all processes (``process.settings``): an empty variable counts as unset.
            default, words = os.environ.get(variable) or default, f"{words} (default: ${variable})"
        if not more.get("required"):
            more = {**more, "default": default}
        parser.add_argument(flag, help=words, **more)
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
