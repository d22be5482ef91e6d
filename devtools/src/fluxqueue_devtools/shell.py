"""The programs that a shell beside ``fluxqueue up`` finds: links in one folder, psql and python.

``up`` prints the lines that put them on the PATH. They are those of this installation, so no other
program of the machine hides, and ``python`` imports the client.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from fluxqueue.process.whole_file import write_whole

PROGRAMS = ("fluxqueue", "kubectl-fluxqueue", "kubectl_complete-fluxqueue")
PYTHONS = ("python", "python3")
EXECUTABLE = 0o755


def write_programs(folder: Path) -> None:
    """Put the command line of this installation into ``folder``, which is created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        here, link = Path(sys.executable).parent / name, folder / name
        link.unlink(missing_ok=True)
        if here.is_file():
            link.symlink_to(here)
    for name in PYTHONS:  # a link would not find the packages of its environment
        text = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
        write_whole(folder / name, text, mode=EXECUTABLE)


def write_psql(folder: Path, program: str, environ: Mapping[str, str]) -> None:
    """Write a psql that opens our database.

    Parameters
    ----------
    environ : ``PGHOST`` and so on. An argument such as ``"$DATABASE_URL"`` wins over them.
    """
    exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in environ.items())
    text = f'#!/bin/sh\n{exports}exec {shlex.quote(program)} "$@"\n'
    write_whole(folder / "psql", text, mode=EXECUTABLE)


def export_lines(kubeconfig: Path, programs: Path) -> list[str]:
    """Return the lines that a user copies into another shell."""
    return [
        f"export KUBECONFIG={shlex.quote(str(kubeconfig))}",
        f"export PATH={shlex.quote(str(programs))}:$PATH",
    ]
