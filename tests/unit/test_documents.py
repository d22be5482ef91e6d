"""What the documentation leads to is there: pages, headings, files; and what code says of pages."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))]
)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
_FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub and the site name them."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """In the repository as on the site."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for path, anchor in _LINK.findall(text):
        target = page.parent / path if path else page
        assert target.exists(), path
        if anchor:
            assert anchor in _anchors(target), f"{path}#{anchor}"


def test_pages_that_code_names_are_there() -> None:
    """Messages, comments and words of columns name pages, from the root of the repository."""
    found = subprocess.run(
        ["git", "grep", "-IohE", r"\bdocs/[a-z/-]+\.(md|py)\b"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    named = set(found.stdout.split())
    assert "docs/architecture.md" in named
    assert [one for one in sorted(named) if not (ROOT / one).exists()] == []


def test_the_reference_is_what_the_code_says() -> None:
    """`python docs/reference_pages.py` has been run."""
    found = runpy.run_path(str(ROOT / "docs" / "reference_pages.py"))["pages"]()
    assert len(found) == 6
    for page, text in found.items():
        assert page.read_text(encoding="utf-8") == text, page.name


def test_every_page_is_on_the_site() -> None:
    """The index leads to each, and its table of contents, too."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in sorted({*(ROOT / "docs").rglob("*.md")} - {ROOT / "docs" / "index.md"}):
        name = str(page.relative_to(ROOT / "docs").with_suffix(""))
        assert f"]({name}.md" in index, name
        assert f"\n{name}\n" in index, name
