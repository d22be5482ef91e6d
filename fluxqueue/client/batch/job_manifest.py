"""The Job of a command line or a script, as ``submit`` creates it and ``explain`` asks about it.

The Job is an ordinary one with our annotations: a manifest can say the same. Each of its pods runs
the command, as with srun, and JOB_COMPLETION_INDEX distinguishes them. A script runs once. Reads at
most the script and the site's file, and calls no API server.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxqueue.client.batch.directive_values import SINGLETON
from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.client.batch.script import Script
    from fluxqueue.client.batch.script_request import ScriptRequest
    from fluxqueue.client.batch.site_names import SiteNames

IMAGE_VARIABLE = "FLUXQUEUE_IMAGE"
GPU = "nvidia.com/gpu"
NAME_MAX = 52
"""Longest name of a Job made here: its pods append their index and a suffix to it."""
SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".flux")
"""Suffixes of scripts: a missing file with one of them is not a program of the image."""


def read_command(words: list[str], *, site_file: str = "", **options: Any) -> ScriptRequest:
    """Return the request of a script (a file that begins with ``#!``, or ``-``), or of a command.

    ``site_file`` has the site's names. ``options`` are those of ``with_options``, and ``each_pod``.
    They win over the script's lines, as do the ``SBATCH_*`` variables of the shell.

    Raises
    ------
    InvalidInput
        A script does not exist or cannot be used, or there is no command.
    """
    from fluxqueue.client.batch.site_names import load_site_names

    if not words[0]:
        raise InvalidInput("is empty", where="COMMAND", hint="use a script, or -- and a command")
    site = load_site_names(site_file)
    if words[0] == "-":
        return _of_script(sys.stdin.read(), Path("stdin"), words, site, options)
    file = Path(words[0])
    if not file.is_file() and "/" not in words[0] and file.suffix in SCRIPTS:
        raise InvalidInput(
            "no such script",
            where=words[0],
            hint=f"for a program of the image, give its folder: -- ./{words[0]}",
        )
    if not file.is_file():
        return of_command(words, site_file=site_file, **options)
    return _of_script(_text_of(file), file, words, site, options)


def _of_script(
    text: str, file: Path, words: list[str], site: SiteNames, options: Mapping[str, Any]
) -> ScriptRequest:
    from fluxqueue.client.batch.script import read_script, with_variables

    script = read_script(text, words[0], site.ignore)
    if script.system == "slurm":
        script = with_variables(script, os.environ)
    # With -c the first word after the program is $0.
    shell = script.command[-2:-1] == ("-c",) and "python" not in script.command[-3]
    tail = (file.name, *words[1:]) if shell else tuple(words[1:])
    script = replace(script, command=(*script.command, *tail))
    return _request(script, file.stem, site, options)


def of_command(words: Sequence[str], *, site_file: str = "", **options: Any) -> ScriptRequest:
    """Return the request of a command that the image has. See ``read_command``."""
    from fluxqueue.client.batch.script import Script
    from fluxqueue.client.batch.site_names import load_site_names

    stem = words[0].rsplit("/", 1)[-1]
    return _request(Script(tuple(words)), stem, load_site_names(site_file), options)


def _request(
    script: Script, stem: str, site: SiteNames, options: Mapping[str, Any]
) -> ScriptRequest:
    from fluxqueue.client.batch.script_request import translate, with_options

    options = dict(options)
    is_each_pod = options.pop("each_pod", None)
    script = with_options(script, **options)
    request = translate(script, site, local_time(), is_each_pod=is_each_pod)
    if not request.name and not request.is_singleton:
        return replace(request, name=new_name(stem))
    return with_name(request, request.name or stem)


def new_name(stem: str, random_bytes: int = 3) -> str:
    """Return a new name for a Job. Two submissions of the same work have different ones.

    Parameters
    ----------
    random_bytes : 3 are short to type. Thousands of Jobs of one name need 5.
    """
    return f"{valid_name(stem)[:40].rstrip('-')}-{secrets.token_hex(random_bytes)}"


def with_name(request: ScriptRequest, name: str) -> ScriptRequest:
    """Return the request with a name. One that is not valid is kept beside the nearest valid."""
    valid = valid_name(name)
    return replace(request, name=valid, original_name=name if valid != name else "")


def local_time() -> datetime:
    """Return the present time without a zone: a time of day in a script is local."""
    return datetime.now()  # noqa: DTZ005


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"cannot be read: {error.strerror}", where=str(file), hint="check its permissions"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"is not a text file: {error}", where=str(file), hint="save it as UTF-8"
        ) from None


def valid_name(word: str) -> str:
    """Return the nearest name that an Indexed Job can have."""
    name = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")
    return name[:NAME_MAX].rstrip("-") or "job"


def job_manifest(request: ScriptRequest) -> dict[str, Any]:
    """Return the Job for ``request``.

    Raises
    ------
    InvalidInput
        No image is named.
    """
    from fluxqueue.client.batch.job_of_script import manifest_of

    if request.layout.has_agents:
        request = replace(request, service=f"steps-{secrets.token_hex(4)}")
    if not request.image:
        raise InvalidInput(
            "no image given",
            where="--image",
            hint=f"use --image, {IMAGE_VARIABLE}, or a line `#FLUX: --image=...` in the script",
        )
    return manifest_of(_in_its_turn(request) if request.is_singleton else request)


def _in_its_turn(request: ScriptRequest) -> ScriptRequest:
    """Return a singleton with a name of its own, because the jobs before it may have the same."""
    shared = request.name
    return replace(
        request,
        name=new_name(shared),
        original_name=request.original_name or shared,
        depends_on=SINGLETON.sub(f"singleton:{shared}", request.depends_on),
    )
