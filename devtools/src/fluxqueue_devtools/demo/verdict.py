"""The result of a scene in numbers, and everything that did not go as it must. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.db.reading.figures import FluxJobLine, NodeFigures, RunFigures
from fluxqueue_devtools.demo.ledger import Account, DemoLedger, NodeSeen
from fluxqueue_devtools.demo.manifests import Scene

SAID_AT_ONCE_S = 5.0
"""An impossible Job must be known as such by then, on the slowest machine (seconds)."""


@dataclass(frozen=True, slots=True)
class DemoOutcome:
    """A scene at its end. ``leaked`` counts slots. ``problems`` is empty if all went well."""

    jobs: int
    pods: int
    makespan_s: float
    utilisation: float
    mean_wait_s: float
    leaked: int
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the line at the end of a scene."""
        return (
            f"jobs={self.jobs} pods={self.pods} makespan={self.makespan_s:.1f}s"
            f" utilisation={100 * self.utilisation:.0f}% mean_wait={self.mean_wait_s:.2f}s"
            f" leaked={self.leaked}"
        )


def judge(
    scene: Scene,
    figures: RunFigures,
    lines: Sequence[FluxJobLine],
    nodes: Sequence[NodeFigures],
    ledger: DemoLedger,
    told_after_s: Mapping[str, float],
    seen: Mapping[str, NodeSeen] | None = None,
    coming: Collection[str] = (),
) -> DemoOutcome:
    """Compare the rows and the watched pods with what the scene must be.

    Parameters
    ----------
    told_after_s : seconds from submission until a FluxJob was seen as Unsatisfiable, by Job name.
    seen : the nodes that were watched, also those that are gone.
    coming : names of the Jobs that were seen to wait for nodes to come.
    """
    account = ledger.accounts[scene.namespace]
    capacity_core_s = scene.cores * figures.makespan_s
    still_allocated_m = sum(node.allocated_m for node in nodes)
    problems = [
        *_ends(scene, lines),
        *_pods(scene, account),
        *_together(scene, account),
        *_nodes(nodes, ledger, seen or {}),
        *_told(scene, told_after_s),
        *_new_nodes(scene, seen or {}, coming),
    ]
    if figures.leaked_slots or still_allocated_m:
        problems.append(
            f"{figures.leaked_slots} slots leaked, {still_allocated_m / 1000:g} cores not returned"
        )
    return DemoOutcome(
        jobs=figures.jobs,
        pods=len(account.pods),
        makespan_s=figures.makespan_s,
        utilisation=account.core_s / capacity_core_s if capacity_core_s else 0.0,
        mean_wait_s=figures.mean_wait_s,
        leaked=figures.leaked_slots,
        problems=tuple(problems),
    )


def _ends(scene: Scene, lines: Sequence[FluxJobLine]) -> list[str]:
    """Return an error for every Job without exactly one FluxJob that ended as it must."""
    states: dict[str, list[str]] = {}
    for line in lines:
        states.setdefault(line.name, []).append(line.state)
    return [
        f"{one.name} is lost: it must end {one.must_end}, and is {', '.join(found) or 'unknown'}"
        for one in scene.submissions
        if (found := states.get(one.name, [])) != [one.must_end]
    ]


def _pods(scene: Scene, account: Account) -> list[str]:
    return [
        f"{one.name}: {account.succeeded[one.name]} pods succeeded of {one.completions}"
        for one in scene.submissions
        if account.succeeded[one.name] != one.completions
    ]


def _together(scene: Scene, account: Account) -> list[str]:
    problems = []
    if scene.together_max is not None and account.together_peak != scene.together_max:
        problems.append(
            f"at most {account.together_peak} pods were on a node at once;"
            f" it must be {scene.together_max}"
        )
    if account.together:
        problems.append(f"{account.together} pods still use a node")
    return problems


def _nodes(
    nodes: Sequence[NodeFigures], ledger: DemoLedger, seen: Mapping[str, NodeSeen]
) -> list[str]:
    capacity = {name: one.capacity_m for name, one in seen.items()}
    capacity |= {node.node: node.capacity_m for node in nodes}
    return [
        f"{name} was seen with {peak_m / 1000:g} cores in use of {capacity.get(name, 0) / 1000:g}"
        for name, peak_m in sorted(ledger.node_peak_m.items())
        if peak_m > capacity.get(name, 0)
    ]


def _new_nodes(scene: Scene, seen: Mapping[str, NodeSeen], coming: Collection[str]) -> list[str]:
    """Return an error for each node that did not come or go, and each Job without notice."""
    if not scene.new_nodes:
        return []
    problems = [
        f"{one.name} was never seen to wait for nodes"
        for one in scene.submissions
        if one.name not in coming
    ]
    for name in scene.new_nodes:
        if name not in seen:
            problems.append(f"node {name} never came")
        elif seen[name].gone_s is None:
            problems.append(f"node {name} is still there")
    return problems


def _told(scene: Scene, told_after_s: Mapping[str, float]) -> list[str]:
    return [
        f"{one.name} was called impossible only after {told_after_s[one.name]:.1f} s"
        for one in scene.submissions
        if one.must_end == "Unsatisfiable" and told_after_s.get(one.name, 0.0) > SAID_AT_ONCE_S
    ]
