"""A second system in one folder is refused before it touches a file of the first."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue_devtools.localpg.folder_lock import lock_folder
from fluxqueue_devtools.stack import Stack
from fluxqueue_devtools.stack_options import StackOptions


def _content(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}


async def test_a_second_system_touches_no_file_of_the_first(tmp_path: Path) -> None:
    """Also if it brings its own cluster or database, and the first one has left files of a run."""
    for name in ("kubeconfig", "cluster-port", "webhook-port", "logs/cluster.log", "certs/ca.crt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    first = lock_folder(tmp_path)
    before = _content(tmp_path)
    for options in (
        StackOptions(data_dir=tmp_path),
        StackOptions(data_dir=tmp_path, database_url="postgresql://u@127.0.0.1:1/x"),
        StackOptions(data_dir=tmp_path, kubeconfig=tmp_path / "kubeconfig"),
    ):
        with pytest.raises(InvalidSettings, match="in use by process"):
            async with Stack(options):
                pass
    assert _content(tmp_path) == before
    first.close()
    lock_folder(tmp_path).close()
