"""The Job of a command line or a script, as ``submit`` creates it and ``explain`` asks about it.

The Job is an ordinary one with our annotations: a manifest can say the same. Each of its pods runs
the command, as with srun. JOB_COMPLETION_INDEX distinguishes them. Reads at most the script, and
calls no API server.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.cli.user.script import ScriptRequest

IMAGE_VARIABLE = "FLUXQUEUE_IMAGE"
GPU = "nvidia.com/gpu"
SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".flux")
"""Suffixes of scripts: a missing file with one of them is not a program of the image."""


def read_command(words: list[str]) -> ScriptRequest:
    """Return the request of a script (a file that begins with ``#!``), or of a command.

    Raises
    ------
    InvalidInput
        A script does not exist or cannot be used, or there is no command.
    """
    from fluxqueue.cli.user.script import ScriptRequest, read_script

    if not words[0]:
        raise InvalidInput("is empty", where="COMMAND", hint="use a script, or -- and a command")
    file = Path(words[0])
    if not file.exists() and "/" not in words[0] and file.suffix in SCRIPTS:
        raise InvalidInput(
            "no such script",
            where=words[0],
            hint=f"for a program of the image, give its folder: -- ./{words[0]}",
        )
    if not file.is_file():
        stem = _name_of(words[0])
        return ScriptRequest(command=tuple(words), name=stem)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror}", where=words[0]) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"is not a text file: {error}", where=words[0]) from None
    request = read_script(text, words[0])
    # With -c the first word after the program is $0.
    shell = request.command[-2:-1] == ("-c",) and "python" not in request.command[-3]
    tail = (file.name, *words[1:]) if shell else tuple(words[1:])
    return replace(
        request, command=(*request.command, *tail), name=request.name or _name_of(file.stem)
    )


def _name_of(word: str) -> str:
    """Return a name for a Job, made from ``word`` and a random suffix."""
    base = re.sub(r"[^a-z0-9]+", "-", word.rsplit("/", 1)[-1].lower()).strip("-")[:40] or "job"
    return f"{base.rstrip('-')}-{secrets.token_hex(3)}"


def job_manifest(request: ScriptRequest) -> dict[str, Any]:
    """Return the Job for ``request``.

    Raises
    ------
    InvalidInput
        No image is named.
    """
    from fluxqueue.workload import labels

    if not request.image:
        raise InvalidInput(
            "no image given",
            where="--image",
            hint=f"use --image, {IMAGE_VARIABLE}, or a line `#FLUX: --image=...` in the script",
        )
    annotations = {
        labels.DURATION: request.duration,
        labels.PRIORITY: request.priority,
        labels.DEPENDS_ON: request.depends_on,
        labels.BEGIN_TIME: request.begin,
        labels.WITHIN: request.within,
        labels.HOLD: "true" if request.is_held else "",
        labels.EXCLUSIVE: "true" if request.is_exclusive else "",
        labels.SPREAD: "node" if request.is_spread else "",
    }
    count = request.array or request.tasks
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": request.name,
            "labels": {labels.QUEUE: request.queue} if request.queue else {},
            "annotations": {key: one for key, one in annotations.items() if one},
        },
        "spec": {
            "parallelism": request.tasks if not request.array else count,
            "completions": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {
                "spec": {"restartPolicy": "Never", "containers": [_container(request)]},
            },
        },
    }


def _container(request: ScriptRequest) -> dict[str, Any]:
    resources = {"cpu": request.cpus, "memory": request.memory}
    requests = {key: one for key, one in resources.items() if one}
    limits = {GPU: str(request.gpus)} if request.gpus else {}
    return {
        "name": "main",
        "image": request.image,
        # Kubernetes expands $(NAME) and turns $$ into $. The program must see its own text.
        "command": [word.replace("$", "$$") for word in request.command],
        **({"workingDir": request.folder} if request.folder else {}),
        **(
            {"env": [{"name": n, "value": v.replace("$", "$$")} for n, v in request.environment]}
            if request.environment
            else {}
        ),
        "resources": {"requests": {**requests, **limits}, **({"limits": limits} if limits else {})},
    }
