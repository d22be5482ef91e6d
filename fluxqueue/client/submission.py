"""The object that a submission creates: of a command, script, function, manifest or jobspec.

``async_client`` and ``executor`` call it. Reads at most a local file, and calls no API server.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fluxqueue.client.batch.job_manifest import (
    GPU,
    IMAGE_VARIABLE,
    job_manifest,
    new_name,
    of_command,
    read_command,
)
from fluxqueue.client.batch.job_options import (
    KNOWN,
    SHAPE,
    JobOptions,
    apply_options,
    shape_options,
)
from fluxqueue.client.batch.script_request import ScriptRequest
from fluxqueue.client.calls import call_environment, runner_command
from fluxqueue.client.documents import read_document
from fluxqueue.errors import InvalidInput
from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.workload import labels
from fluxqueue.workload.kinds.table import find_kind
from fluxqueue.workload.own_jobspec import read_jobspec

Work: TypeAlias = str | Sequence[str] | Path | Callable[..., Any] | Mapping[str, Any]
"""What can be submitted.

- a list of words: a command of the image
- a text: a line for ``/bin/sh -c``
- a ``Path``: a batch script, or a file with a manifest or a jobspec
- a callable: it runs in a pod, and its value comes back
- a mapping: a manifest (it has ``kind``) or a jobspec (it has ``resources``)
"""

Body = dict[str, Any]


def body_of(
    work: Work, args: Sequence[Any], kwargs: Mapping[str, Any], options: JobOptions
) -> Body:
    """Return the object to create for a submission.

    Raises
    ------
    InvalidInput
        The work cannot be submitted, or an option does not apply to it.
    """
    check_options(options)
    if callable(work):
        return body_of_calls(work, [(tuple(args), dict(kwargs))], options)
    if isinstance(work, Path):
        return _body_of_file(work, [str(one) for one in args], options)
    if isinstance(work, Mapping):
        _refuse_arguments(args, kwargs)
        return _body_of_document(work, options)
    _refuse_arguments(args, kwargs)
    words = ["/bin/sh", "-c", work] if isinstance(work, str) else [str(one) for one in work]
    if not words or not words[-1]:
        raise InvalidInput("is empty", where="work", hint='use a list such as ["python", "x.py"]')
    # A shell line is named after its first word, not after the shell.
    stem = work.split()[0].rsplit("/", 1)[-1] if isinstance(work, str) else ""
    named: JobOptions = {"name": new_name(stem), **options} if stem else options
    return job_manifest(_request(of_command(words, **shape_options(options)), named))


def body_of_calls(
    function: Callable[..., Any],
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]],
    options: JobOptions,
    *,
    is_array: bool = False,
    at_once: int = 0,
) -> Body:
    """Return the Job that calls a function once for each of ``calls``.

    Parameters
    ----------
    is_array : Each call is a task of its own, which starts when there is room for it.
    at_once : How many tasks run at the same time at most, 0: no limit.

    Raises
    ------
    InvalidInput
        cloudpickle is not installed, or the function and its arguments are too large.
    """
    from dataclasses import replace

    check_options(options)
    environment = call_environment(function, calls)
    if any(options.get(name) for name in ("tasks", "nodes", "array")):
        raise InvalidInput(
            "a call runs in one pod", where="tasks, nodes, array",
            hint="use map for several calls, or a command for several pods",
        )  # fmt: skip
    name = getattr(function, "__name__", "") or type(function).__name__
    stem = name if name.isidentifier() else "call"
    named: JobOptions = {"name": new_name(stem, 5), **options}
    request = _request(of_command(runner_command(), **shape_options(options)), named)
    request = replace(request, environment=(*request.environment, *environment))
    if is_array:
        request = replace(request, array=tuple(range(len(calls))), array_limit=at_once)
    return job_manifest(request)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse an unknown option, as Python refuses an unknown parameter. Raises TypeError."""
    for name in options:
        if name not in KNOWN:
            raise TypeError(
                f"{name!r} is not an option of submit. Fix: one of {', '.join(sorted(KNOWN))}"
            )


def question_of(body: Body) -> dict[str, Any]:
    """Return what a PlacementReview asks about an object that is not created."""
    return {"manifest": body}


def _refuse_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if args or kwargs:
        raise InvalidInput(
            "only functions and scripts take arguments", where="args",
            hint="put them into the command",
        )  # fmt: skip


def _request(request: ScriptRequest, options: JobOptions) -> ScriptRequest:
    with_image: JobOptions = {"image": os.environ.get(IMAGE_VARIABLE, ""), **options}
    if request.image and not options.get("image"):
        with_image["image"] = request.image
    return apply_options(request, with_image)


def _body_of_file(file: Path, args: list[str], options: JobOptions) -> Body:
    if file.suffix not in {".yaml", ".yml", ".json"}:
        if not file.is_file():
            raise InvalidInput("no such file", where=str(file))
        request = read_command([str(file.absolute()), *args], **shape_options(options))
        return job_manifest(_request(request, options))
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=str(file)) from None
    return _body_of_document(read_document(text, str(file)), options)


def _body_of_document(document: Mapping[str, Any], options: JobOptions) -> Body:
    if "kind" in document:
        _check_manifest(document, options)
        return dict(document)
    if "resources" in document:
        return _body_of_jobspec(document, options)
    raise InvalidInput(
        "is neither a manifest nor a jobspec", where="work",
        hint="a manifest has `kind`, a jobspec has `resources`",
    )  # fmt: skip


def _check_manifest(manifest: Mapping[str, Any], options: JobOptions) -> None:
    if options:
        raise InvalidInput(
            "a manifest says this itself", where=sorted(options)[0],
            hint="use the labels and annotations of docs/reference/labels.md",
        )  # fmt: skip
    group = str(manifest.get("apiVersion") or "").rpartition("/")[0]
    if find_kind(group, str(manifest["kind"])) is None:
        raise InvalidInput(
            "is not a kind that can be queued", where="kind", value=str(manifest["kind"]),
            hint="see docs/user/groups.md",
        )  # fmt: skip


def _body_of_jobspec(jobspec: Mapping[str, Any], options: JobOptions) -> Body:
    """Return a Job with one pod for each slot. The jobspec is its annotation."""
    for name in SHAPE:
        if options.get(name):
            raise InvalidInput("the jobspec says this", where=name, hint="leave it out")
    own = read_jobspec(json.dumps(dict(jobspec)), "jobspec").jobspec
    words = next((one.get("command") for one in jobspec.get("tasks") or ()), None)
    if not words:
        raise InvalidInput(
            "is missing", where="tasks[0].command", hint='such as command: ["python", "x.py"]'
        )
    words = ["/bin/sh", "-c", words] if isinstance(words, str) else [str(one) for one in words]
    body = job_manifest(_request(of_command(words), options))
    count = sum(kind.count for kind in slot_kinds(own))
    body["spec"] |= {"parallelism": count, "completions": count}
    kept = {"version": 1, "attributes": {}, **jobspec, "tasks": []}
    body["metadata"]["annotations"][labels.JOBSPEC] = json.dumps(kept, separators=(",", ":"))
    container = body["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = _resources(own)
    return body


def _resources(own: Any) -> Body:
    """Return the resources of each pod. Pods of several kinds differ, so theirs stay empty."""
    kinds = slot_kinds(own)
    if len(kinds) != 1:
        return {}
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, amount in dict(kinds[0].needs).items():
        if name == "cpu":
            requests[name] = f"{amount}m"
        elif name == "memory":
            requests[name] = str(amount)
        elif name != "pods":
            limits[GPU if name == "gpu" else name] = str(amount)
    found = {"requests": {**requests, **limits}}
    return {**found, "limits": limits} if limits else found
