"""What the documentation leads to is there: pages, headings, files, and what code says of pages."""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path

import pytest

from fluxqueue.view.openapi import document

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
    assert len(found) == 10
    for page, text in found.items():
        assert page.read_text(encoding="utf-8") == text, page.name


def test_every_page_is_on_the_site() -> None:
    """An index leads to each page, and its table of contents, too.

    A folder may have an index of its own. The index of the site then leads to that one.
    """
    site = ROOT / "docs" / "index.md"
    for page in sorted({*(ROOT / "docs").rglob("*.md")} - {site}):
        own = page.with_name("index.md")
        index = own if own.exists() and page != own else site
        name = page.relative_to(index.parent).with_suffix("").as_posix()
        text = index.read_text(encoding="utf-8")
        assert f"]({name}.md" in text, name
        assert f"\n{name}\n" in text, name


def test_the_first_page_of_the_site_has_a_picture_and_three_doors() -> None:
    """What it is, how it looks, and where each kind of reader begins. The sidebar is grouped."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    first, _, _ = text.partition("\n## ")
    assert "](pictures/demo.svg)" in first
    for door in ("user/tutorial.md", "admin/install.md", "architecture.md", "../README.md"):
        assert f"]({door})" in first
    assert re.findall(r"^:caption: (.*)$", text, re.MULTILINE) == [
        "User", "Administrator", "Developer", "Reference"
    ]  # fmt: skip
    settings = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    assert '"sphinx_copybutton"' in settings, "commands can be copied"


def test_decisions_are_numbered_dated_and_complete() -> None:
    """Each page has its number, its date, and the three parts."""
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    index = (ROOT / "docs" / "decisions" / "index.md").read_text(encoding="utf-8")
    assert [page.name[:4] for page in pages] == [f"{n:04}" for n in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text(encoding="utf-8")
        title, date = re.findall(r"\A# \d{4}: (.+)\n\n(\d{4}-\d\d-\d\d), \w+", text)[0]
        assert f"| {page.name[:4]} | [{title}]({page.name}) | {date} |" in index, page.name
        assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
        ], page.name
        assert len(text.split()) < 260, f"{page.name}: half a page"


def test_the_page_of_the_view_server_has_all_its_paths() -> None:
    """Each path of its OpenAPI document, by its last word."""
    page = (ROOT / "docs/reference/view.md").read_text(encoding="utf-8")
    words = {path.replace("{jobid}", "JOBID").rpartition("/")[2] for path in document()["paths"]}
    assert "swf" in words
    assert {word for word in words if not re.search(rf"[`/]{word}\b", page)} == set()
