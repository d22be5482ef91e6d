"""The Job of a command line or a script, as ``submit`` creates it and ``explain`` asks about it.

The Job is an ordinary one with our annotations: a manifest can say the same. Each of its pods runs
the command, as with srun. JOB_COMPLETION_INDEX distinguishes them. Reads at most the script, and
calls no API server.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.client.batch.script import Script
    from fluxqueue.client.batch.script_request import ScriptRequest

IMAGE_VARIABLE = "FLUXQUEUE_IMAGE"
GPU = "nvidia.com/gpu"
NAME_MAX = 52
"""Longest name of a Job made here: its pods append their index and a suffix to it."""
SCRIPTS = (".sh", ".bash", ".sbatch", ".slurm", ".flux")
"""Suffixes of scripts: a missing file with one of them is not a program of the image."""


def read_command(words: list[str], *, site_file: str = "", **options: Any) -> ScriptRequest:
    """Return the request of a script (a file that begins with ``#!``), or of a command.

    ``site_file`` has the site's names. ``options`` are those of ``with_options``. They win over the
    script's lines.

    Raises
    ------
    InvalidInput
        A script does not exist or cannot be used, or there is no command.
    """
    from fluxqueue.client.batch.script import read_script

    if not words[0]:
        raise InvalidInput("is empty", where="COMMAND", hint="use a script, or -- and a command")
    file = Path(words[0])
    if not file.is_file() and "/" not in words[0] and file.suffix in SCRIPTS:
        raise InvalidInput(
            "no such script",
            where=words[0],
            hint=f"for a program of the image, give its folder: -- ./{words[0]}",
        )
    if not file.is_file():
        return of_command(words, site_file=site_file, **options)
    script = read_script(_text_of(file), words[0])
    # With -c the first word after the program is $0.
    shell = script.command[-2:-1] == ("-c",) and "python" not in script.command[-3]
    tail = (file.name, *words[1:]) if shell else tuple(words[1:])
    script = replace(script, command=(*script.command, *tail))
    return _request(script, file.stem, site_file, options)


def of_command(words: Sequence[str], *, site_file: str = "", **options: Any) -> ScriptRequest:
    """Return the request of a command that the image has. See ``read_command``."""
    from fluxqueue.client.batch.script import Script

    return _request(Script(tuple(words)), words[0].rsplit("/", 1)[-1], site_file, options)


def _request(
    script: Script, stem: str, site_file: str, options: Mapping[str, Any]
) -> ScriptRequest:
    from fluxqueue.client.batch.script_request import translate, with_options
    from fluxqueue.client.batch.site_names import load_site_names

    request = translate(with_options(script, **options), load_site_names(site_file), local_time())
    if not request.name:
        return replace(request, name=new_name(stem))
    return with_name(request, request.name)


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

    if not request.image:
        raise InvalidInput(
            "no image given",
            where="--image",
            hint=f"use --image, {IMAGE_VARIABLE}, or a line `#FLUX: --image=...` in the script",
        )
    return manifest_of(request)
