"""Protection of a page against other sites: headers of safety, and which requests may act. Pure.

The view server (``view.window``) and the local proxy to it (``cli.user.web``) use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""Headers of every answer. The policy allows no inline script and no address but our own."""
ACTING = "X-Fluxqueue-Window"
"""A header that every request of the page has. Another site cannot send it without permission."""
_SAFE_METHODS = frozenset({"GET", "HEAD"})


def why_foreign(method: str, host: str, headers: Mapping[str, str]) -> str | None:
    """Return why a request with a cookie does not come from the page itself, or None if it does.

    Parameters
    ----------
    host : the address by which the server was asked, with its port.
    """
    site = headers.get("Sec-Fetch-Site", "same-origin")
    is_opened = method in _SAFE_METHODS and headers.get("Sec-Fetch-Mode") == "navigate"
    if site not in {"same-origin", "none"} and not is_opened:
        return f"Sec-Fetch-Site is {site}"
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        return f"Origin is {origin[:100]}"
    if method not in _SAFE_METHODS and ACTING not in headers:
        return f"the header {ACTING} is missing"
    return None
