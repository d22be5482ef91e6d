"""Take the pictures of the window for README and pages, from its recorded demo.

``make screenshots`` calls it. It needs Chromium and its driver. The files of the page are served
here, so no cluster is needed. Pictures are looked at before they are committed: they show the time
of day, so no two are equal.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from fluxqueue.view.window import FILES, PAGE, read_files  # noqa: E402  after the path
from tests.support.browser import Page, browsing, missing_browser  # noqa: E402

PICTURES = ROOT / "docs/pictures"
VIEWS = ("map", "queue", "time", "machine")
SIZE = (1280, 760)


class _Files(BaseHTTPRequestHandler):
    files = read_files()

    def do_GET(self) -> None:
        """Answer with a file of the page."""
        path = self.path.partition("?")[0]
        found = self.files.get(PAGE if path == "/" else path.removeprefix(FILES))
        self.send_response(200 if found else 404)
        if found is not None:
            self.send_header("Content-Type", found.kind)
        self.end_headers()
        if found is not None:
            self.wfile.write(found.body)

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        """Print nothing."""


@contextmanager
def _served() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/?demo=1"
    finally:
        server.shutdown()


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
    with _served() as address, browsing() as page:
        page.driver.set_window_size(*SIZE)
        page.open(address)
        page.says("recorded demo", "header")
        for view in VIEWS:
            _take(page, view)


if __name__ == "__main__":
    main()
