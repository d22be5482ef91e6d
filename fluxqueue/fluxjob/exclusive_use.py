"""What excludes other pods and no node advertises: host ports, and volume claims for one pod.

Both are names beside the resources of a slot, so that rows and R keep them. ``workload.own_pods``
and ``workload.volumes`` write them. The ledger of shares gives each node its ports and counts the
claims of the whole cluster. The names have a colon, which no resource of Kubernetes can have. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

HOST_PORT = "host-port:"
"""Begin of the name of a port: followed by protocol, number and, if there is one, address."""

PORT_SHARES = 1 << 20
"""A node has so many shares of each port. A pod that listens on all addresses takes all of them."""

ONE_POD_CLAIM = "one-pod-claim:"
"""Begin of the name of a claim: followed by its namespace and its name."""

ANY_ADDRESS = "0.0.0.0"  # noqa: S104  a wildcard of the API
"""Kubernetes reads an absent ``hostIP`` like this."""


def port_use(ports: Iterable[tuple[str, int, str]]) -> dict[str, int]:
    """Return what a pod takes of its node for ports, by name.

    Two pods with the same port fit one node only if each names another address.

    Parameters
    ----------
    ports : protocol, number and address of each.
    """
    found: dict[str, int] = {}
    for protocol, number, address in ports:
        name = f"{HOST_PORT}{protocol}:{number}"
        if address == ANY_ADDRESS:
            found[name] = PORT_SHARES
        else:
            found.setdefault(name, 1)
            found[f"{name}:{address}"] = 1
    return found


def claim_use(namespace: str, claim: str) -> str:
    """Return the name under which the use of a claim for one pod is counted."""
    return f"{ONE_POD_CLAIM}{namespace}:{claim}"


def is_exclusive(name: str) -> bool:
    """Tell whether a name is that of a port or a claim, and of no resource."""
    return name.startswith((HOST_PORT, ONE_POD_CLAIM))


def implied_capacity(name: str) -> int:
    """Return what every node has of a port (shares). It is 0 for everything else."""
    if not name.startswith(HOST_PORT):
        return 0
    return 1 if name.count(":") > 2 else PORT_SHARES


def describe_exclusive(name: str) -> str:
    """Return a port or a claim in words: ``host port 8080/TCP``, ``volume claim data``."""
    if name.startswith(ONE_POD_CLAIM):
        return f"volume claim {name.rpartition(':')[2]}"
    protocol, number, *address = name.removeprefix(HOST_PORT).split(":", 2)
    return f"host port {number}/{protocol}" + (f" of {address[0]}" if address else "")


def is_partial(name: str, amount: int) -> bool:
    """Tell whether an amount is only the share of one address, which has a name of its own."""
    return name.startswith(HOST_PORT) and amount < implied_capacity(name)
