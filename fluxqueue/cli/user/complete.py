"""What the shell offers after TAB: names of jobs, queues, nodes and namespaces of the cluster.

Asked while somebody types: one page, a short patience, and silence whatever goes wrong. The words
typed so far say which cluster and namespace.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fluxqueue.errors import FluxQueueError

if TYPE_CHECKING:
    from fluxqueue.kube.resources import Resource

PATIENCE_S = 5.0
"""For an answer."""
OFFERED_MAX = 500

Offers = list[tuple[str, str]]
"""Words, each with what explains it."""


def complete_jobs(context: typer.Context, incomplete: str) -> Offers:
    """Names of workloads that are in the queue or run, with their state."""
    from fluxqueue.kube.resources import FLUXJOBS

    typed = set(context.params.get("names") or ())
    return [
        (name, str((one.get("status") or {}).get("state", "")))
        for one in _first_page(context, FLUXJOBS)
        if (name := one["spec"]["workload"]["name"]).startswith(incomplete) and name not in typed
    ]


def complete_queues(context: typer.Context, incomplete: str) -> Offers:
    """Names of FluxQueues, with their policy."""
    from fluxqueue.kube.resources import FLUXQUEUES

    return [
        (one["metadata"]["name"], str((one.get("spec") or {}).get("policy", "queue")))
        for one in _first_page(context, FLUXQUEUES)
        if one["metadata"]["name"].startswith(incomplete)
    ]


def complete_nodes(context: typer.Context, incomplete: str) -> Offers:
    """Names of nodes."""
    from fluxqueue.kube.resources import NODES

    return [
        (one["metadata"]["name"], "cordoned" if one["spec"].get("unschedulable") else "node")
        for one in _first_page(context, NODES)
        if one["metadata"]["name"].startswith(incomplete)
    ]


def complete_namespaces(context: typer.Context, incomplete: str) -> Offers:
    """Names of namespaces."""
    from fluxqueue.kube.resources import NAMESPACES

    return [
        (one["metadata"]["name"], "namespace")
        for one in _first_page(context, NAMESPACES)
        if one["metadata"]["name"].startswith(incomplete)
    ]


def complete_states(incomplete: str) -> Offers:
    """States of a FluxJob, and the words for several."""
    from fluxqueue.cli.user.fluxjobs import GROUPS
    from fluxqueue.fluxjob.states import FluxJobState

    groups = [(name, "several states") for name in GROUPS]
    words = [*groups, *((state.lower(), "state") for state in FluxJobState)]
    return [(word, what) for word, what in words if word.startswith(incomplete.lower())]


def _first_page(context: typer.Context, resource: Resource) -> list[dict[str, Any]]:
    try:
        return asyncio.run(_read(context.params, resource))
    except (FluxQueueError, OSError):
        return []


async def _read(params: dict[str, Any], resource: Resource) -> list[dict[str, Any]]:
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config

    kubeconfig: Path | None = params.get("kubeconfig")
    config = load_config(str(kubeconfig) if kubeconfig else None, params.get("context") or None)
    where = None if params.get("is_everywhere") else params.get("namespace") or config.namespace
    async with KubeClient(config, timeout_s=PATIENCE_S, attempts_max=1) as client:
        user = params.get("impersonate")
        acting = client.acting_as(user) if user else client
        answer = await acting.request(
            "GET", resource.path(where), query={"limit": str(OFFERED_MAX)}
        )
    found: list[dict[str, Any]] = answer.get("items") or []
    return found
