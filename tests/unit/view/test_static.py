"""The files of the page: libraries unchanged, nothing inline, and no text written as markup."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from fluxqueue.view.window import read_files

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "fluxqueue/view/static"
OWN = sorted(STATIC.glob("*.js"))
FIRST_LOAD_MAX = 300_000


def test_libraries_are_as_published() -> None:
    """Each is named with its hash and has its licence beside it."""
    table = (STATIC / "vendor/README.md").read_text()
    told = dict(re.findall(r"^\| `([a-z.-]+)` .*`([0-9a-f]{64})` \|$", table, re.M))
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (STATIC / "vendor").iterdir()
        if path.suffix in {".js", ".css"}
    }
    assert found == told
    assert len(list((STATIC / "vendor").glob("LICENSE-*.txt"))) == 3


def test_the_page_has_nothing_inline() -> None:
    """The Content-Security-Policy would stop it, and the page would not work."""
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page
    assert " style=" not in page
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"\son[a-z]+=", page)
    for address in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert address.removeprefix("/window/") in read_files(), address


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_text_is_never_markup(path: Path) -> None:
    """Names of users reach the page as text nodes and attributes only."""
    source = path.read_text()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
                 "dangerouslySetInnerHTML", "new Function", "javascript:"):  # fmt: skip
        assert word not in source
    assert source.startswith("// "), "it says what it is"


def test_imports_are_files_of_ours() -> None:
    """Nothing comes from another host."""
    files = read_files()
    for path in OWN:
        for name in re.findall(r'(?:from|import)\(? ?"([^"]+)"', path.read_text()):
            assert name.startswith("./"), name
            assert name.removeprefix("./") in files, f"{path.name} imports {name}"
        assert not re.search(r"https?://", path.read_text())


def test_the_first_load_is_small() -> None:
    """All scripts and styles together, before they are compressed."""
    loaded = [
        file for name, file in read_files().items() if name.endswith((".js", ".css", ".html"))
    ]
    assert sum(len(file.body) for file in loaded) < FIRST_LOAD_MAX
