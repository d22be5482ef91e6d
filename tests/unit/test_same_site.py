"""Which requests with a cookie come from the page itself."""

from __future__ import annotations

import pytest

from fluxqueue.view.same_site import ACTING, SAFE, why_foreign

HOST = "view.example.org:8443"
OURS = {ACTING: "1"}


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("GET", {"Sec-Fetch-Site": "same-origin"}),
        ("GET", {"Sec-Fetch-Site": "none"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
        ("POST", OURS),
        ("POST", {**OURS, "Sec-Fetch-Site": "same-origin", "Origin": f"https://{HOST}"}),
    ],
)
def test_of_the_page(method: str, headers: dict[str, str]) -> None:
    """Its own requests, and a link that opens it."""
    assert why_foreign(method, HOST, headers) is None


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {}),
        ("DELETE", {"Sec-Fetch-Site": "same-origin"}),
        ("GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}),
        ("GET", {"Sec-Fetch-Site": "same-site"}),
        ("POST", {**OURS, "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
        ("POST", {**OURS, "Origin": "https://evil.example"}),
        ("POST", {**OURS, "Origin": "https://view.example.org"}),
        ("POST", {**OURS, "Origin": "null"}),
        ("GET", {"Origin": f"https://{HOST}.evil.example"}),
    ],
)
def test_of_another_site(method: str, headers: dict[str, str]) -> None:
    """Each is refused with the reason."""
    assert why_foreign(method, HOST, headers)


def test_the_policy_allows_nothing_inline() -> None:
    """And no frame, no form and no other host."""
    policy = SAFE["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert "*" not in policy
