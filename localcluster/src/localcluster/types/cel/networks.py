"""URLs and addresses; called by ``functions``. Pure.

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
    """A URL with a scheme, or a path from the root."""
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
    """Without port and brackets, spelt as it is."""
    host = parts.netloc.rpartition("@")[2]
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def query(parts: SplitResult) -> dict[str, list[str]]:
    """Each key with its values."""
    return parse_qs(parts.query, keep_blank_values=True)


def ip(text: str) -> Ip:
    """An address without zone; one of IPv4 within IPv6 is refused."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError as error:
        why = f'IP Address "{text}" parse error during conversion from string'
        raise CelError(f'{why}: ParseAddr("{text}"): unable to parse IP') from error
    if isinstance(found, ipaddress.IPv6Address) and (found.ipv4_mapped or found.scope_id):
        raise CelError(f'IPv4-mapped IPv6 address or zone in "{text}" is not allowed')
    return found


def cidr(text: str) -> Cidr:
    """An address and the length of its network's part."""
    if "/" not in text or not text.rpartition("/")[2].isdigit():
        raise CelError(f'CIDR "{text}" parse error during conversion from string')
    try:
        return ipaddress.ip_interface(text)
    except ValueError as error:
        why = f'CIDR "{text}" parse error during conversion from string'
        raise CelError(f"{why}: {error}") from error


def holds(net: Cidr, other: Cidr) -> bool:
    """Whether all of ``other`` lies within."""
    if net.version != other.version:
        return False
    return net.network.prefixlen <= other.network.prefixlen and other.ip in net.network


def masked(net: Cidr) -> Cidr:
    """The first address of its network."""
    return ipaddress.ip_interface(str(net.network))


def is_link_local_multicast(address: Ip) -> bool:
    """224.0.0.0/24 or ff02::/16."""
    nets = ("224.0.0.0/24", "ff02::/16")
    return any(address in ipaddress.ip_network(net) for net in nets)


def is_global_unicast(address: Ip) -> bool:
    """As Go defines it: private addresses are, too."""
    is_broadcast = str(address) == "255.255.255.255"
    special = address.is_unspecified or address.is_loopback or address.is_link_local
    return not (special or address.is_multicast or is_broadcast)


is_url, is_ip, is_cidr = _reads(url), _reads(ip), _reads(cidr)
