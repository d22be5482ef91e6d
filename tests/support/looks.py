"""Looks of the controller at pods that do not start."""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.db.store.reconciling import Reconciled, reconcile
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.start_watch import StartRules
from tests.support.rows import Rows, pod

RULES = StartRules(unschedulable_s=5, timeout_s=300, tries_max=2)

WORDS = "0/3 nodes are available: 1 node(s) had untolerated taint(s)"


def unbound(uid: str) -> PodFact:
    """A pod without a gate that kube-scheduler cannot bind."""
    return replace(pod(uid, is_gated=False), unschedulable=WORDS)


async def look(rows: Rows, uid: str, rules: StartRules = RULES) -> Reconciled:
    """Settle one workload, as a worker does."""
    async with rows.database.begin() as tx:
        return await reconcile(tx, [uid], rules=rules)


async def pass_time(rows: Rows, seconds: float) -> None:
    """Make everything older that a start is measured by."""
    await rows.execute(
        "UPDATE pods SET unschedulable_at = unschedulable_at - make_interval(secs => :s)", s=seconds
    )
    await rows.execute(
        "UPDATE fluxjobs SET allocated_at = allocated_at - make_interval(secs => :s),"
        " start = start || jsonb_strip_nulls(jsonb_build_object("
        "'retry_at', (start ->> 'retry_at')::timestamptz - make_interval(secs => :s),"
        " 'trouble', start -> 'trouble' || jsonb_build_object("
        "'since_s', (start -> 'trouble' ->> 'since_s')::float8 - :s)))",
        s=seconds,
    )
