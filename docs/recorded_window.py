"""The window without a cluster: its page, answered from a recorded day, for pictures and tests.

``screenshots`` and ``tests/integration/test_window_access.py`` call it. The files of the page are
those of the view server, but ``server.js`` is ``recorded_server.js``. ``record_day`` makes the day.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from record_day import record

from fluxqueue.view.window import FILES, PAGE, SAFE, read_files


class _Handler(BaseHTTPRequestHandler):
    files: dict[str, tuple[str, bytes]]

    def do_GET(self) -> None:
        """Answer with a file of the page, or of the recording."""
        path = self.path.partition("?")[0]
        found = self.files.get(PAGE if path == "/" else path.removeprefix(FILES))
        self.send_response(200 if found else 404)
        if found is not None:
            for name, value in {"Content-Type": found[0], **SAFE}.items():
                self.send_header(name, value)
        self.end_headers()
        if found is not None:
            self.wfile.write(found[1])

    def log_message(self, *_: object) -> None:  # type: ignore[override]
        """Print nothing."""


@contextmanager
def recorded_window() -> Iterator[str]:
    """Serve the page on loopback, and yield its address."""
    script = Path(__file__).with_name("recorded_server.js").read_bytes()
    day, replay = (("application/json", text.encode()) for text in record())
    own = {"server.js": ("text/javascript", script), "day.json": day, "replay.json": replay}
    page = {name: (file.kind, file.body) for name, file in read_files().items()}
    handler = type("_Files", (_Handler,), {"files": page | own})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
