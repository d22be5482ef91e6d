"""A reader that waits for a file sees it whole. A writer that dies half way changes nothing."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from fluxqueue.process.whole_file import PUBLIC, write_whole

LONG = "x" * 1_000_000


def test_a_reader_who_waits_never_sees_a_part(tmp_path: Path) -> None:
    """Each write is read over and over while it happens: always one text or the other."""
    file = tmp_path / "kubeconfig"
    texts = [letter * 300_000 for letter in "abcdefgh"]
    writer = threading.Thread(target=lambda: [write_whole(file, text) for text in texts * 5])
    writer.start()
    seen = set()
    while writer.is_alive():
        if file.is_file():
            seen.add(file.read_text())
    writer.join()
    assert seen
    assert seen <= set(texts)


def test_what_stood_there_stays_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, told by ``fsync``, leaves the old content and no other file behind."""
    file = tmp_path / "port"
    write_whole(file, "8443")

    def disk_full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, LONG)
    assert file.read_text() == "8443"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("mode", [0o600, PUBLIC])
def test_permissions_are_as_asked(tmp_path: Path, mode: int) -> None:
    """Also where a file with others stood before."""
    file = tmp_path / "token"
    file.touch(mode=0o666)
    write_whole(file, b"secret", mode=mode)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """A kubeconfig is often a link to another."""
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
