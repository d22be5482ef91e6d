"""Shell completion: names of jobs, queues, nodes and namespaces of the cluster.

It runs while the user types. So it reads only as many pages as a moment allows, waits little, and
stays silent on every error. The words typed so far select cluster and namespace. No API server
finds names by their prefix. If there are very many, some may not be offered, and a last word says
that there are more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fluxqueue.errors import FluxQueueError

if TYPE_CHECKING:
    from fluxqueue.kube.resources import ApiResource

PATIENCE_S = 2.0
"""Seconds to wait for an answer."""
READING_S = 0.3
"""Seconds after which no further page is requested."""
PAGE = 500
OFFERED_MAX = 100
MORE = "..."
"""The end of a word that stands for all names that are not offered.

A shell completes the common prefix of all words. Without this word it would complete a prefix that
only the names read so far have in common.
"""

Offers = list[tuple[str, str]]
"""Words, each with its description."""
Item = Mapping[str, Any]


def complete_jobs(context: typer.Context, incomplete: str) -> Offers:
    """Return names of workloads in the cluster, with their state."""
    from fluxqueue.kube.resources import FLUXJOBS

    typed = set(context.params.get("names") or ())

    def read(one: Item) -> tuple[str, str]:
        return one["spec"]["workload"]["name"], (one.get("status") or {}).get("state", "")

    return _offer(context, FLUXJOBS, read, incomplete, typed)


def complete_queues(context: typer.Context, incomplete: str) -> Offers:
    """Return names of FluxQueues, with their policy."""
    from fluxqueue.kube.resources import FLUXQUEUES

    def read(one: Item) -> tuple[str, str]:
        return one["metadata"]["name"], (one.get("spec") or {}).get("policy", "queue")

    return _offer(context, FLUXQUEUES, read, incomplete)


def complete_nodes(context: typer.Context, incomplete: str) -> Offers:
    """Return names of nodes."""
    from fluxqueue.kube.resources import NODES

    def read(one: Item) -> tuple[str, str]:
        is_cordoned = one["spec"].get("unschedulable")
        return one["metadata"]["name"], "cordoned" if is_cordoned else "node"

    return _offer(context, NODES, read, incomplete)


def complete_namespaces(context: typer.Context, incomplete: str) -> Offers:
    """Return names of namespaces."""
    from fluxqueue.kube.resources import NAMESPACES

    return _offer(
        context, NAMESPACES, lambda one: (one["metadata"]["name"], "namespace"), incomplete
    )


def complete_states(incomplete: str) -> Offers:
    """Return states of a FluxJob, and the words for several states."""
    from fluxqueue.client.fluxjob_lists import GROUPS
    from fluxqueue.fluxjob.states import SHOWN

    groups = [(name, "several states") for name in GROUPS]
    words = [*groups, *((state.lower(), "state") for state in SHOWN)]
    return [(word, what) for word, what in words if word.startswith(incomplete.lower())]


def _offer(
    context: typer.Context,
    resource: ApiResource,
    read: Callable[[Item], tuple[str, str]],
    incomplete: str,
    typed: Set[str] = frozenset(),
) -> Offers:
    """Return names that begin with ``incomplete`` and are not ``typed`` yet.

    ``read`` returns the name of an object and its description.
    """

    def offer(one: Item) -> tuple[str, str] | None:
        name, what = read(one)
        return (name, what) if name.startswith(incomplete) and name not in typed else None

    try:
        found, has_more = asyncio.run(_read(context.params, resource, offer))
    except (FluxQueueError, OSError, TimeoutError):
        return []
    return [*found, (incomplete + MORE, "there are more")] if found and has_more else found


async def _read(
    params: dict[str, Any], resource: ApiResource, offer: Callable[[Item], tuple[str, str] | None]
) -> tuple[Offers, bool]:
    """Return offers from as many pages as time allows, and whether there may be more."""
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config

    kubeconfig: Path | None = params.get("kubeconfig")
    config = load_config(str(kubeconfig) if kubeconfig else None, params.get("context") or None)
    where = None if params.get("is_everywhere") else params.get("namespace") or config.namespace
    found: dict[str, str] = {}
    loop = asyncio.get_running_loop()
    async with (
        asyncio.timeout(PATIENCE_S),
        KubeClient(config, timeout_s=PATIENCE_S, attempts_max=1) as client,
    ):
        user = params.get("impersonate")
        acting = client.acting_as(user) if user else client
        end_s = loop.time() + READING_S
        async with aclosing(acting.pages(resource, where, limit=PAGE)) as pages:
            async for page in pages:
                found |= dict(filter(None, map(offer, page.items)))
                is_late = loop.time() > end_s and len(page.items) == PAGE
                if len(found) > OFFERED_MAX or is_late:
                    return list(found.items())[:OFFERED_MAX], True
    return list(found.items()), False
