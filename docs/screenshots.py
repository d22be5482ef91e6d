"""Take the pictures of the window for README and pages, from a recorded day.

``make screenshots`` calls it. It needs Chromium and its driver, and no cluster. Pictures are looked
at before they are committed: they show the time of day, so no two are equal.
"""

from __future__ import annotations

import sys
from pathlib import Path

from recorded_window import recorded_window

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import Page, browsing, missing_browser  # noqa: E402  after the path

PICTURES = ROOT / "docs/pictures"
VIEWS = ("map", "queue", "time", "machine")
SIZE = (1280, 760)


def _take(page: Page, view: str) -> None:
    page.run("location.hash = arguments[0]", f"#/{view}")
    drawn = (
        "return document.querySelector('canvas')?.dataset.frameMs ||"
        " document.querySelector('td, form button')"
    )
    page.until(lambda one: one.run(drawn), f"{view} is not drawn")
    if view == "machine":
        page.click("form button", "Replay")
        page.says("use of cores", "table")
    page.run("return new Promise((done) => setTimeout(done, 400))")
    page.driver.save_screenshot(str(PICTURES / f"window-{view}.png"))


def main() -> None:
    """Take all pictures."""
    if why := missing_browser():
        sys.exit(f"{why}: install the packages chromium and chromium-driver")
    with recorded_window() as address, browsing() as page:
        page.driver.set_window_size(*SIZE)
        page.open(address)
        page.says("recorded day", "header")
        for view in VIEWS:
            _take(page, view)


if __name__ == "__main__":
    main()
