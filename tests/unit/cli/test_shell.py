"""The programs of the shell beside ``fluxqueue up``, and the lines that put them on the PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fluxqueue_devtools.shell import export_lines, write_programs, write_psql


def test_psql_knows_the_database_and_arguments_win(tmp_path: Path) -> None:
    """Values are data, also with spaces and quotes. A second start replaces the file."""
    shows = tmp_path / "shows"
    shows.write_text('#!/bin/sh\necho "$PGHOST|$PGPORT|$*"\n')
    shows.chmod(0o755)
    for port in ("1", "2"):
        write_psql(tmp_path, str(shows), {"PGHOST": "/a b/'c'", "PGPORT": port})
    done = subprocess.run([tmp_path / "psql", "-c", "x"], capture_output=True, check=True)
    assert done.stdout.decode() == "/a b/'c'|2|-c x\n"


def test_links_are_made_again(tmp_path: Path) -> None:
    """A link of an earlier installation is replaced."""
    folder = tmp_path / "bin"
    for _ in range(2):
        write_programs(folder)
    assert (folder / "fluxqueue").is_symlink()
    (folder / "fluxqueue").unlink()
    (folder / "fluxqueue").symlink_to(tmp_path / "gone")
    write_programs(folder)
    assert (folder / "fluxqueue").exists()


def test_python_is_that_of_the_installation(tmp_path: Path) -> None:
    """It imports the client, as the pages for users do."""
    write_programs(tmp_path)
    for name in ("python", "python3"):
        words = [
            tmp_path / name,
            "-c",
            "from fluxqueue.client import Client; print(Client.__name__)",
        ]
        done = subprocess.run(words, capture_output=True, check=True, env={})
        assert done.stdout == b"Client\n"


def test_the_lines_set_up_a_shell(tmp_path: Path) -> None:
    """As pasted, also from a folder with a space in its name."""
    folder = tmp_path / "my clone" / "bin"
    folder.mkdir(parents=True)
    lines = export_lines(folder / "kubeconfig", folder)
    script = "\n".join([*lines, 'echo "$KUBECONFIG|${PATH%%:*}"'])
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == f"{folder}/kubeconfig|{folder}\n"
