"""The check: read rows and cluster, compare them, and read again before believing it.

``fluxqueue check``, the demo and every end-to-end test call it. It reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fluxqueue.checking import node_checks, pod_checks, queue, workload_checks
from fluxqueue.checking.both_sides import CheckView, read_cluster
from fluxqueue.checking.findings import Finding
from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.db.reading.snapshot import read_rows, read_start_figures
from fluxqueue.kube.client import KubeClient
from fluxqueue.workload.owner_kinds import OwnerKinds
from fluxqueue.workload.site import DEFAULT_CPU_M

PAUSE_S = 0.5
UNSEEN_S = 300
"""One resync interval in seconds: how long the rows may lack a new object."""

COMPARISONS: tuple[Callable[[CheckView], Iterator[Finding]], ...] = (
    queue.drift,
    queue.reservations,
    queue.promises,
    queue.overruns,
    workload_checks.rows_of_workloads,
    workload_checks.stranded,
    workload_checks.workloads_of_rows,
    workload_checks.allocations,
    workload_checks.releases,
    workload_checks.fluxjobs,
    pod_checks.ungated,
    pod_checks.holders,
    node_checks.over_capacity,
    node_checks.usage,
    queue.late_effects,
    queue.loops,
    queue.quarantined,
)


def compare(view: CheckView) -> list[Finding]:
    """Return all differences of one round, in the order of ``COMPARISONS``. Pure.

    A comparison that fails for one object is a finding by itself. All other comparisons are made.
    """
    found: list[Finding] = []
    for comparison in COMPARISONS:
        try:
            found.extend(comparison(view))
        except Exception as error:  # noqa: BLE001  the other comparisons still have something to say
            name = comparison.__name__.replace("_", " ")
            detail = f"{type(error).__name__}: {error}"
            found.append(Finding("comparison not possible", f"check of {name}", detail))
    return found


async def check(
    database: Database,
    client: KubeClient,
    clock: Clock,
    *,
    patience_s: float = 5.0,
    unseen_s: int = UNSEEN_S,
    default_cpu_m: int = DEFAULT_CPU_M,
    owner_kinds: OwnerKinds | None = None,
) -> list[Finding]:
    """Check every invariant. Without a broken one, all hold.

    Parameters
    ----------
    patience_s : Seconds that a difference between rows and cluster must last to count. It must be
        there in every round. 0 believes the first round.
    unseen_s : Objects younger than this many seconds may be unknown to the rows.
    default_cpu_m : Millicores of a pod without a cpu request.
    owner_kinds : The kinds beside Job that create pods.

    Raises
    ------
    DatabaseUnavailable, ApiUnavailable, ApiError
        One of the two sides cannot be read.
    """

    async def look() -> list[Finding]:
        cluster = await read_cluster(client)
        rows = await read_rows(database, also=cluster.workload_uids())
        return compare(
            CheckView(
                cluster,
                rows,
                clock.now_s(),
                unseen_s=unseen_s,
                default_cpu_m=default_cpu_m,
                owner_kinds=owner_kinds or OwnerKinds(),
            )
        )

    # Rows and cluster cannot be read at one instant, so a difference may pass: read again.
    until_s = clock.monotonic_s() + patience_s
    found = await look()
    settled = [finding for finding in found if not finding.may_pass]
    suspects = [finding for finding in found if finding.may_pass]
    while suspects and clock.monotonic_s() < until_s:
        await clock.sleep(PAUSE_S)
        found = await look()
        known = {finding.key for finding in settled}
        settled += [f for f in found if not f.may_pass and f.key not in known]
        lasting = {finding.key for finding in suspects}
        suspects = [f for f in found if f.may_pass and f.key in lasting]
    return settled + suspects


async def check_starts(database: Database) -> list[Finding]:
    """Return how good the expected starts of the last week were: a figure or a warning, if any."""
    return list(queue.expected_starts(await read_start_figures(database)))
