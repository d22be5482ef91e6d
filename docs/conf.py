"""How Sphinx builds the site: ``make docs``. Its packages are those of requirements/docs.lock.

The pages are Markdown that also reads well in the repository. The site adds search and one
navigation. A warning fails the build: a link without a target, a page without a link, a picture
that cannot be drawn. Mermaid itself draws the pictures during the build, without a browser
(mermaidx). So the site asks nothing of any other host, and can be read offline.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

from sphinx.errors import ExtensionError

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/converged-computing/fluxqueue/blob/main"

project = "fluxqueue"
copyright = "The fluxqueue authors"  # noqa: A001 Sphinx's name
version = release = re.findall(
    r'^version = "(.*)"',
    (ROOT / "pyproject.toml").read_text(encoding="utf-8"),
    re.MULTILINE,
)[0]

extensions = ["myst_parser", "sphinx_copybutton", "sphinxcontrib.mermaid"]
# A copied block has its commands alone, without prompts and without what they print.
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
copybutton_here_doc_delimiter = "END"
exclude_patterns = ["_build"]
myst_enable_extensions = ["attrs_block"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 4
mermaid_output_format = "svg"
mermaid_cmd = shlex.quote(str(Path(sys.executable).parent / "mermaidx"))
mermaid_params = ["--quiet", "--background", "white"]
nitpicky = True

html_theme = "furo"
html_title = f"fluxqueue {release}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["pictures/site.css"]
html_css_files = ["site.css"]

_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|link|img|object|iframe|source)\b[^>]*\b(?:src|href|data)=["'](?:https?:)?//"""
    r"""|\bimport\b[^;<]*["']https?://|\burl\(["']?https?://"""
)
_LINK = re.compile(r"\]\(((?:\.\./)+[^)#\s]+)")


def setup(app: Any) -> None:
    """Have links out of this folder lead to the repository: what they name is not in the site."""
    app.connect("source-read", _lead_to_the_repository)
    app.connect("build-finished", _must_stand_alone)


def _must_stand_alone(app: Any, error: Exception | None) -> None:
    """Refuse a site with pages that load anything from another host."""
    if error is not None:
        return
    for page in Path(app.outdir).rglob("*.[hc][ts][ms]*"):
        if found := _FROM_ELSEWHERE.search(page.read_text(encoding="utf-8")):
            raise ExtensionError(f"{page.name} loads from another host: {found[0]}")


def _lead_to_the_repository(_app: Any, page: str, source: list[str]) -> None:
    def led(link: re.Match[str]) -> str:
        target = (ROOT / "docs" / page).parent.joinpath(link[1]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page}: {link[1]}")
        return f"]({REPOSITORY}/{target.relative_to(ROOT)}"

    source[0] = _LINK.sub(led, source[0])
