"""URLs and addresses. ``functions`` uses them. Pure.

Source: ``library/urls.go``, ``library/ip.go``, ``library/cidr.go`` of k8s.io/apiserver/pkg/cel.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from localcluster.types.cel.values import CelError, Cidr, Ip


def _reads(read: Callable[[str], Any]) -> Callable[[str], bool]:
    def evaluate(text: str) -> bool:
        try:
            read(text)
        except CelError:
            return False
        return True

    return evaluate


def url(text: str) -> SplitResult:
    """Parse a URL with a scheme, or a path from the root."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise CelError(f"URL parse error during conversion from string: {error}") from error
    has_scheme = bool(parts.scheme) and bool(parts.netloc or parts.path)
    if not has_scheme and not text.startswith("/"):
        why = "invalid URI for request"
        raise CelError(f'URL parse error during conversion from string: parse "{text}": {why}')
    return parts


def host_name(parts: SplitResult) -> str:
    """Return the host without port and brackets, otherwise unchanged."""
    host = parts.netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def query(parts: SplitResult) -> dict[str, list[str]]:
    """Return each key with its values."""
    return parse_qs(parts.query, keep_blank_values=True)


def ip(text: str) -> Ip:
    """Parse an address without zone. An IPv4 address within IPv6 is refused."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError as error:
        why = f'IP Address "{text}" parse error during conversion from string'
        raise CelError(f'{why}: ParseAddr("{text}"): unable to parse IP') from error
    if isinstance(found, ipaddress.IPv6Address) and (found.ipv4_mapped or found.scope_id):
        raise CelError(f'IPv4-mapped IPv6 address or zone in "{text}" is not allowed')
    return found


def cidr(text: str) -> Cidr:
    """Parse an address with the length of its network part."""
    if "/" not in text or not text.rpartition("/")[2].isdigit():
        raise CelError(f'CIDR "{text}" parse error during conversion from string')
    try:
        return ipaddress.ip_interface(text)
    except ValueError as error:
        why = f'CIDR "{text}" parse error during conversion from string'
        raise CelError(f"{why}: {error}") from error


def holds(net: Cidr, other: Cidr) -> bool:
    """Return whether all of ``other`` lies within ``net``."""
    if net.version != other.version:
        return False
    return net.network.prefixlen <= other.network.prefixlen and other.ip in net.network


def masked(net: Cidr) -> Cidr:
    """Return the first address of its network."""
    return ipaddress.ip_interface(str(net.network))


def is_link_local_multicast(address: Ip) -> bool:
    """Return whether the address is in 224.0.0.0/24 or ff02::/16."""
    nets = ("224.0.0.0/24", "ff02::/16")
    return any(address in ipaddress.ip_network(net) for net in nets)


def is_global_unicast(address: Ip) -> bool:
    """Return whether the address is global unicast as Go defines it: private addresses are too."""
    is_broadcast = str(address) == "255.255.255.255"
    special = address.is_unspecified or address.is_loopback or address.is_link_local
    return not (special or address.is_multicast or is_broadcast)


is_url, is_ip, is_cidr = _reads(url), _reads(ip), _reads(cidr)
