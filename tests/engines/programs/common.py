"""What the programs of all engines share: the work that they submit, and how they are called.

A program is ordinary code of a user. The suite runs it with the Python of its engine, so it imports
nothing of this project:

    python PROGRAM run NAME       submit work, wait for its end as the engine does, print its logs
    python PROGRAM cancel NAME    cancel it as the engine does

Exit code 0: the work succeeded. The environment says where: ``KUBECONFIG``, ``ENGINE_NAMESPACE``,
``ENGINE_POOL`` (a node label), ``ENGINE_SECONDS`` (how long the work takes), ``ENGINE_QUEUE`` (a
label, where a queue sets how Jobs wait) and ``ENGINE_STATE`` (a file of ``cancel``).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

NAMESPACE = os.environ.get("ENGINE_NAMESPACE", "default")
POOL = os.environ.get("ENGINE_POOL", "single")
SECONDS = os.environ.get("ENGINE_SECONDS", "1")
QUEUE = os.environ.get("ENGINE_QUEUE", "")
LIMIT_S = 240
"""How long a program waits for its work, where the engine wants a limit."""


def pod_spec(**more: Any) -> dict[str, Any]:
    """Return a pod that sleeps. It needs a whole node of the suite."""
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "nodeSelector": {"pool": POOL},
        "containers": [
            {
                "name": "main",
                "image": "busybox",
                "command": ["sleep", SECONDS],
                "resources": {"requests": {"cpu": "4"}},
            }
        ],
        **more,
    }


def queue_labels() -> dict[str, str]:
    """Return the label of the queue that sets how Jobs wait."""
    return {"fluxqueue/queue": QUEUE} if QUEUE else {}


def job(name: str) -> dict[str, Any]:
    """Return the Job of a client: one pod, replaced if it is lost."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": queue_labels()},
        "spec": {"backoffLimit": 3, "template": {"spec": pod_spec()}},
    }


def remember(words: str = "") -> None:
    """Keep ``words`` for ``cancel``, or else the number of this process for a signal to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Whole when it has its name: another process waits for it.
    file = os.environ["ENGINE_STATE"]
    with open(f"{file}.new", "w", encoding="utf-8") as new:  # noqa: PTH123
        new.write(words or str(os.getpid()))
    os.replace(f"{file}.new", file)  # noqa: PTH105


def remembered() -> str:
    """Wait until ``remember`` was called, and return what it kept."""
    while not os.path.exists(os.environ["ENGINE_STATE"]):  # noqa: PTH110
        time.sleep(0.2)
    with open(os.environ["ENGINE_STATE"], encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def interrupt(_: str) -> None:
    """Cancel as a user does at the terminal of the running program, with Ctrl-C."""
    os.kill(int(remembered()), signal.SIGINT)


def terminate(_: str) -> None:
    """Cancel as a supervisor of the running program does."""
    os.kill(int(remembered()), signal.SIGTERM)


def is_over(conditions: list[Mapping[str, Any]] | None) -> bool | None:
    """Return how a Job with these conditions ended, None if it has not."""
    said = {one["type"] for one in conditions or () if one["status"] == "True"}
    return True if "Complete" in said else False if "Failed" in said else None


def main(run: Callable[[str], bool], cancel: Callable[[str], None]) -> None:
    """Do what the command line says."""
    action, name = sys.argv[1:3]
    if action == "cancel":
        cancel(name)
        return
    is_good = run(name)
    print(f"result: {'succeeded' if is_good else 'failed'}", flush=True)
    sys.exit(0 if is_good else 3)
