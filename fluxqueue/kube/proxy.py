"""The proxy for requests to the API server, by kubectl's rules.

``config.py`` calls it for each loaded configuration. The rules are those of Go's
``golang.org/x/net/http/httpproxy``, which kubectl uses:

- ``proxy-url`` of the kubeconfig wins, and ``NO_PROXY`` does not apply to it.
- Without it, the scheme of the server selects ``HTTPS_PROXY`` or ``HTTP_PROXY``. Neither is used if
  ``NO_PROXY`` names the server, or the server is this machine.

It must not open connections: it only reads settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from fluxqueue.errors import InvalidSettings

_SCHEMES = ("http", "https")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def proxy_for(server: str, given: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the proxy for ``server``, or None for a direct connection.

    Parameters
    ----------
    server : The URL of the API server.
    given : The ``proxy-url`` of the kubeconfig.
    environ : The process environment.

    Raises
    ------
    InvalidSettings
        The proxy cannot be used. The error names where it was set.
    """
    if given:
        return _checked(given, where="clusters[].cluster.proxy-url")
    url = urlsplit(server)
    variable, value = _from_environment(url.scheme, environ)
    if not value or is_excluded(url, environ.get("no_proxy") or environ.get("NO_PROXY") or ""):
        return None
    return _checked(value if "://" in value else f"http://{value}", where=variable)


def _from_environment(scheme: str, environ: Mapping[str, str]) -> tuple[str, str]:
    upper = f"{scheme.upper()}_PROXY"
    for name in (upper, upper.lower()):
        if environ.get(name):
            return name, environ[name]
    return upper, ""


def is_excluded(url: SplitResult, no_proxy: str) -> bool:
    """Return whether ``url`` is reached directly: it is this machine, or ``no_proxy`` names it.

    ``no_proxy`` is a comma-separated list of ``*``, addresses, CIDR blocks and domains, each with
    an optional port. ``example.com`` means the domain and all below it. ``.example.com`` and
    ``*.example.com`` mean only those below it.
    """
    host = (url.hostname or "").rstrip(".").lower()
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    port = url.port or _DEFAULT_PORTS.get(url.scheme, 0)
    entries = [entry.strip().lower() for entry in no_proxy.split(",")]
    return any(_matches(entry, host, address, port) for entry in entries if entry)


def _matches(
    entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, port: int
) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        return address is not None and _contains(entry, address)
    name, wanted_port = _split_port(entry)
    if wanted_port is not None and wanted_port != port:
        return False
    literal = _address(name)
    if literal is not None or address is not None:
        return literal == address
    if name.startswith(("*.", ".")):
        return host.endswith(name.removeprefix("*"))
    return host == name or host.endswith(f".{name}")


def _split_port(entry: str) -> tuple[str, int | None]:
    if entry.startswith("["):  # [2001:db8::1]:6443
        name, _, rest = entry[1:].partition("]")
        return name, int(rest[1:]) if rest[1:].isdecimal() else None
    name, _, port = entry.rpartition(":")
    if name and ":" not in name and port.isdecimal():
        return name, int(port)
    return entry, None


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _contains(block: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    try:
        return address in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False  # as in Go: an unreadable entry excludes nothing


def _checked(proxy: str, *, where: str) -> str:
    parts = urlsplit(proxy)
    if parts.scheme not in _SCHEMES:
        raise InvalidSettings(
            f"{parts.scheme}://{parts.hostname or ''} is not an http or https proxy",
            where=where,
            value=f"{parts.scheme}://{parts.hostname or ''}",
            hint="name an http:// or https:// proxy, or reach the server through a tunnel "
            "(`ssh -L`) and set `server` and `tls-server-name`",
        )
    if not parts.hostname:
        raise InvalidSettings(
            "the proxy has no host", where=where, value=proxy, hint="http://proxy.example:3128"
        )
    return proxy
