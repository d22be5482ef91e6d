"""Calls of functions in pods: how they get there, and how their values come back.

``submission`` makes the environment of a pod, and ``handles`` and ``executor`` read the answers.
``call_runner`` is the program in the pod. Only pods of the user's own Job are read: an answer is a
pickle, and to load one is to run it.
"""

from __future__ import annotations

import base64
import json
import pickle
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from fluxqueue.client.call_runner import MARK
from fluxqueue.client.pod_logs import container_of
from fluxqueue.errors import InvalidInput, NotFound, WorkFailed
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.objects import Object

PART_BYTES = 96 * 1024
"""Length of one variable. Linux takes 128 KiB."""
CALL_MAX_BYTES = 512 * 1024
"""Length of a call in a Job, which may have 1.5 MB in all."""

Calls = Sequence[tuple[tuple[Any, ...], dict[str, Any]]]


class RemoteTraceback(Exception):
    """Where a function has raised its error in the pod. It is the cause of that error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def call_environment(function: Callable[..., Any], calls: Calls) -> list[tuple[str, str]]:
    """Return the variables of a pod that calls a function.

    Raises
    ------
    InvalidInput
        cloudpickle is not installed, or the call is too large.
    """
    try:
        import cloudpickle
    except ImportError:
        raise InvalidInput(
            "functions are sent with cloudpickle, which is not installed", where="work",
            hint="pip install cloudpickle",
        ) from None  # fmt: skip
    try:
        with _by_value(cloudpickle, function):
            data = cloudpickle.dumps((function, list(calls)))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise InvalidInput(
            f"cannot be sent to a pod: {error}", where="work",
            hint="open files and connections inside the function",
        ) from error  # fmt: skip
    text = base64.b64encode(zlib.compress(data)).decode("ascii")
    if len(text) > CALL_MAX_BYTES:
        raise InvalidInput(
            f"function and arguments have {len(text)} bytes, at most {CALL_MAX_BYTES} fit into a"
            " Job", where="work", hint="put the data on a volume, and pass its path",
        )  # fmt: skip
    parts = [text[at : at + PART_BYTES] for at in range(0, len(text), PART_BYTES)]
    return [
        ("FLUXQUEUE_CALL_PYTHON", f"{sys.version_info.major}.{sys.version_info.minor}"),
        ("FLUXQUEUE_CALL_PARTS", str(len(parts))),
        *((f"FLUXQUEUE_CALL_{number}", part) for number, part in enumerate(parts)),
    ]


@contextmanager
def _by_value(cloudpickle: Any, function: Callable[..., Any]) -> Iterator[None]:
    """Have a function sent with its text if its module is the user's own: the image lacks that."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    is_installed = file is None or any(
        Path(file).is_relative_to(path) for path in sysconfig.get_paths().values()
    )
    if (
        module is None
        or is_installed
        or module.__name__ in cloudpickle.list_registry_pickle_by_value()
    ):
        yield
        return
    cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)


@cache
def runner_command() -> tuple[str, ...]:
    """Return the command of the pod."""
    text = resources.files("fluxqueue.client").joinpath("call_runner.py").read_text("utf-8")
    return ("python3", "-c", text)


def message_of(pod: Object) -> str | None:
    """Return the termination message of a pod, or None if its container has not ended."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated")
        if ended is not None:
            return str(ended.get("message") or "")
    return None


def ending_of(pod: Object) -> str:
    """Return how a container ended: ``OOMKilled, exit code 137``. Empty if it has not."""
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        ended = (one.get("state") or {}).get("terminated")
        if ended is not None:
            return f"{ended.get('reason') or 'ended'}, exit code {ended.get('exitCode')}"
    return ""


async def read_value(client: KubeClient, pod: Object) -> Any:
    """Return the value of the call in a pod that has ended.

    Raises
    ------
    WorkFailed
        The program has ended without an answer, or could not send it.
    Exception
        The one that the function has raised. Its cause is a ``RemoteTraceback``.
    """
    name, message = pod["metadata"]["name"], message_of(pod)
    try:
        answer = json.loads(message or "")
        if answer["is"] == "logged":
            answer = json.loads(await _logged(client, pod, int(answer["lines"])))
    except (ValueError, KeyError, TypeError):
        shown = f": {message[:300]}" if message else ""
        _refuse(pod, f"it has ended without an answer ({ending_of(pod)}){shown}")
    if answer["is"] == "refused":
        raise WorkFailed(name, "Failed", str(answer["message"]))
    loaded = pickle.loads(zlib.decompress(base64.b64decode(answer["data"])))  # noqa: S301
    if answer["is"] == "value":
        return loaded
    error, shown = loaded
    raise error from RemoteTraceback(shown)


async def _logged(client: KubeClient, pod: Object, count: int) -> str:
    """Return the answer that a pod has written into its log."""
    meta = pod["metadata"]
    path = PODS.path(meta["namespace"], meta["name"], "log")
    try:
        # The program has written nothing after it.
        text = await client.get_text(
            f"{path}?tailLines={count}&container={container_of(pod)}", timeout_s=60.0
        )
    except NotFound:
        _refuse(pod, "its log with the answer is gone")
    lines = [one.removeprefix(f"{MARK} ") for one in text.splitlines() if one.startswith(MARK)]
    if len(lines) != count:
        _refuse(pod, f"its log has {len(lines)} of {count} lines of the answer")
    return "".join(lines)


def _refuse(pod: Object, why: str) -> NoReturn:
    phase = str((pod.get("status") or {}).get("phase") or "Unknown")
    raise WorkFailed(pod["metadata"]["name"], phase, why)
