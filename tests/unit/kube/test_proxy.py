"""Which proxy is used: kubectl's rules, and a clear refusal of what cannot be used."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from fluxqueue.errors import InvalidSettings
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.proxy import is_excluded, proxy_for

PROXY = "http://proxy.site.example:3128"
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY")


@pytest.mark.parametrize(
    ("server", "no_proxy", "is_direct"),
    [
        # This machine is never behind a proxy.
        ("https://localhost:6443", "", True),
        ("https://127.8.9.10:6443", "", True),
        ("https://[::1]:6443", "", True),
        # Domains: itself and below, only below with a leading dot, never a mere suffix.
        ("https://api.site.example", "site.example", True),
        ("https://site.example", "site.example", True),
        ("https://mysite.example", "site.example", False),
        ("https://api.site.example", ".site.example", True),
        ("https://site.example", ".site.example", False),
        ("https://api.site.example", "*.site.example", True),
        ("https://API.Site.Example.", "SITE.example", True),
        # Addresses and blocks.
        ("https://10.1.2.3:6443", "10.1.0.0/16", True),
        ("https://10.2.2.3:6443", "10.1.0.0/16", False),
        ("https://10.1.2.3:6443", "10.1.2.3", True),
        ("https://10.1.2.33:6443", "10.1.2.3", False),
        ("https://[2001:db8::7]:6443", "2001:db8::/32", True),
        ("https://[2001:db8::7]:6443", "[2001:db8::7]:6443", True),
        # Ports.
        ("https://api.site.example:6443", "site.example:6443", True),
        ("https://api.site.example:6443", "site.example:443", False),
        ("https://api.site.example", "site.example:443", True),
        # Lists, blanks, everything, and what cannot be read.
        ("https://api.site.example", " a.example , site.example ,", True),
        ("https://api.site.example", "*", True),
        ("https://10.1.2.3", "10.0.0.0/99,nonsense/8", False),
        ("https://10.1.2.3", "", False),
    ],
)
def test_what_no_proxy_excludes(server: str, no_proxy: str, is_direct: bool) -> None:
    """As Go's httpproxy package, which kubectl uses, decides it."""
    assert is_excluded(urlsplit(server), no_proxy) is is_direct
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": no_proxy}
    assert proxy_for(server, None, environ) == (None if is_direct else PROXY)


def test_the_variable_follows_the_servers_scheme() -> None:
    """Either case, a bare host means http, and other variables do not count."""
    far = "https://api.site.example"
    assert proxy_for(far, None, {"https_proxy": PROXY}) == PROXY
    assert proxy_for(far, None, {"HTTPS_PROXY": "proxy:8080"}) == "http://proxy:8080"
    assert proxy_for(far, None, {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}) is None
    assert proxy_for(far.replace("https", "http"), None, {"HTTP_PROXY": PROXY}) == PROXY


def test_the_kubeconfigs_proxy_wins() -> None:
    """NO_PROXY is about the environment's proxy only."""
    environ = {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}
    given = "https://bastion.example:8443"
    assert proxy_for("https://127.0.0.1:6443", given, environ) == given


@pytest.mark.parametrize(
    ("given", "environ", "where"),
    [
        ("socks5://user:pw@bastion:1080", {}, "clusters[].cluster.proxy-url"),
        (None, {"HTTPS_PROXY": "socks5h://bastion:1080"}, "HTTPS_PROXY"),
        (None, {"https_proxy": "ftp://bastion"}, "https_proxy"),
        ("http://", {}, "clusters[].cluster.proxy-url"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused(
    given: str | None, environ: dict[str, str], where: str
) -> None:
    """It names where it was set and never shows a password."""
    with pytest.raises(InvalidSettings) as caught:
        proxy_for("https://api.site.example", given, environ)
    assert where in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize("given", [None, "http://bastion.example:3128"])
def test_a_loaded_kubeconfig_follows_these_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """``proxy-url`` first, then the environment with NO_PROXY."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    cluster = {"server": "https://10.9.8.7:6443", **({"proxy-url": given} if given else {})}
    file = tmp_path / "config"
    file.write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    assert load_kubeconfig(str(file)).proxy_url == (given or PROXY)
    monkeypatch.setenv("NO_PROXY", "10.9.0.0/16")
    assert load_kubeconfig(str(file)).proxy_url == given
