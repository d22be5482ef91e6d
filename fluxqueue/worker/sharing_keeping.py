"""The status of ResourceSharingPolicies, by the holder of the matcher's role.

At intervals it counts what each policy gives, and writes what has changed. A policy that exceeds
running work, or fails, says so there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fluxqueue.db.store.rule_rows import RuleRowKind, StoredRule, read_stored_rules
from fluxqueue.db.store.sharing import read_names
from fluxqueue.errors import (
    ApiError,
    Conflict,
    NotFound,
)
from fluxqueue.fluxjob.request import CPU, describe_amount
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import NODES, SHARING_POLICIES
from fluxqueue.process import metrics
from fluxqueue.scheduler.node_sharing import (
    TAINT,
    Excess,
    PolicyFigures,
    TaintChanges,
    Violation,
)
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.keeping import ObjectStatuses, Status, conditions, is_valid, keep
from fluxqueue.worker.schedule import CycleRunner

logger = logging.getLogger(__name__)

LOOP = "sharing"
"""The name of this loop where the times of loops are reported."""

STATUS_S = 2.0
"""The shortest interval in seconds between two writes of a policy's status."""

IDLE_S = 5.0
"""The interval in seconds at which policies are looked for while there is none."""

TAINTS_MAX = 50
"""The most nodes that are tainted in one turn."""

JOBS_MAX = 10
"""The most jobs that a status names for one node."""


class SharingKeeper:
    """Keep the status of all policies up to date while the term lasts."""

    def __init__(self, context: WorkerContext, matcher: CycleRunner) -> None:
        self._context, self._matcher = context, matcher
        gauges = (metrics.SHARING_NODES, metrics.SHARING_VIOLATIONS)
        self._statuses = ObjectStatuses(context.client, SHARING_POLICIES, "sharing", gauges)
        self._untainted: str | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        await keep(self._context, LOOP, self.turn, self._rest)

    async def _rest(self) -> None:
        await self._context.clock.sleep(STATUS_S if self._statuses.names else IDLE_S)

    async def turn(self) -> int:
        """Write the status of policies that have changed. Return the number of writes."""
        async with self._context.database.begin() as tx:
            policies = await read_stored_rules(tx, RuleRowKind.SHARING)
        self._statuses.forget_others({p.name for p in policies}, {p.uid for p in policies})
        found = await self._matcher.sharing_figures()
        if found is None:
            return 0
        figures, taints = found
        await self._taint(taints)
        uids = {k for one in figures.values() for e in one.exceeding for k in e.keys[:JOBS_MAX]}
        names = await read_names(self._context.database, uids)
        now_s, written = self._context.clock.now_s(), 0
        for policy in policies:
            one = figures.get(policy.name, PolicyFigures())
            self._statuses.count(policy.name, one.nodes, one.violations)
            untainted = (self._untainted or "") if policy.name in taints.policies else None
            render = partial(
                render_sharing_status, policy, one, names, untainted=untainted, at_s=now_s
            )
            before = await self._statuses.write(policy.name, policy.uid, render, _as_merge)
            written += before is not None
        return written

    async def _taint(self, changes: TaintChanges) -> None:
        """Add and remove the taint of dedicated nodes. Without the right, the status says so."""
        self._untainted = None
        for node in (*changes.added, *changes.removed)[:TAINTS_MAX]:
            try:
                await self._taint_node(node, is_wanted=node in changes.added)
            except (NotFound, Conflict):
                continue  # the next turn sees the node as it is then
            except ApiError as error:
                self._untainted = f"node {node} cannot be changed: {error}"
                extra = {"action": "sharing", "node": node, "error": str(error)}
                logger.warning("taint not set", extra=extra)
                return

    async def _taint_node(self, name: str, *, is_wanted: bool) -> None:
        client = self._context.client
        node = await client.get(NODES, None, name)
        before = node["spec"].get("taints") or []
        taints = [one for one in before if one["key"] != TAINT.key]
        if is_wanted:
            taints.append({"key": TAINT.key, "effect": TAINT.effect})
        if taints != before:
            # The list is replaced as a whole, so the version makes sure that it is the present one.
            meta = {"resourceVersion": node["metadata"]["resourceVersion"]}
            patch = {"metadata": meta, "spec": {"taints": taints or None}}
            await client.patch(NODES, None, name, patch, kind=PatchKind.MERGE, metadata_only=True)


def _as_merge(before: Status, status: Status) -> Status:
    """Return the patch to a status. A merge keeps resources that are left out."""
    gone = {name: None for name in before.get("given") or {} if name not in status["given"]}
    return {**status, "given": gone | status["given"]}


def render_sharing_status(
    policy: StoredRule,
    figures: PolicyFigures,
    names: Mapping[str, str],
    before: Status,
    *,
    untainted: str | None = None,
    at_s: int,
) -> dict[str, Any]:
    """Return a whole status. Conditions that do not change keep their time.

    ``names``: jobs as namespace/name by the UIDs of their workloads. ``untainted``: why nodes do
    not have the taint that the policy wants, empty if they have it, None if it wants none.
    """
    fault = policy.fault or figures.fault
    exceeding = [_excess(one, names) for one in figures.exceeding]
    wanted = [
        is_valid(fault),
        (
            "Respected",
            not exceeding and not figures.violations,
            "WithinPolicy" if not exceeding and not figures.violations else "Exceeded",
            _told(figures, exceeding),
        ),
    ]
    if untainted is not None:
        reason = "NotPermitted" if untainted else "AsSpecified"
        wanted.append(("Tainted", not untainted, reason, untainted))
    return {
        "nodes": figures.nodes,
        "given": {name: _quantity(name, n) for name, n in sorted(figures.given.items())},
        "violations": figures.violations,
        "violatingPods": [_violation(one) for one in figures.violating],
        "exceededNodes": figures.exceeded,
        "exceeding": exceeding,
        "observedGeneration": policy.generation,
        "conditions": conditions(before, wanted, at_s),
    }


def _told(figures: PolicyFigures, exceeding: Sequence[Mapping[str, Any]]) -> str:
    """Return the pods and jobs that take more than the policy gives, in words."""
    parts = []
    if figures.violations:
        first, more = figures.violating[0], _more(figures.violations, "pods")
        parts.append(f"unmanaged pod {first.pod} is on {first.node}{more}")
    if exceeding:
        one, excess = exceeding[0], figures.exceeding[0]
        jobs = ", ".join(one["jobs"]) or "jobs"
        amounts = ", ".join(
            f"{describe_amount(name, amount)} of {describe_amount(name, excess.given[name])}"
            for name, amount in sorted(excess.held.items())
        )
        more = _more(figures.exceeded, "nodes")
        parts.append(f"{jobs} on {one['node']} hold more than is given ({amounts}){more}")
    return "; ".join(parts)


def _more(number: int, what: str) -> str:
    return f", and {number - 1} more {what}" if number > 1 else ""


def _violation(one: Violation) -> dict[str, str]:
    namespace, _, name = one.pod.partition("/")
    return {"namespace": namespace, "name": name, "node": one.node}


def _excess(one: Excess, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "node": one.node,
        "jobs": [names[key] for key in one.keys[:JOBS_MAX] if key in names],
        "held": {name: _quantity(name, amount) for name, amount in sorted(one.held.items())},
        "given": {name: _quantity(name, amount) for name, amount in sorted(one.given.items())},
    }


def _quantity(name: str, amount: int) -> str:
    """Write an amount in base units as a quantity of Kubernetes: ``1500`` of cpu is ``1500m``."""
    if name != CPU:
        return str(amount)
    return str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
