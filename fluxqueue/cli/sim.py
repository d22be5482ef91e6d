"""``fluxqueue sim``: the production queue on virtual time, with figures and a Gantt chart.

It needs no database and no cluster. The same seed gives the same workload and the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fluxqueue.cli.option_class import with_options
from fluxqueue.cli.sim_options import ALL, SimOptions
from fluxqueue.cli.user.printing import say
from fluxqueue.errors import InvalidSettings

if TYPE_CHECKING:
    from fluxqueue.fluxjob.node import NodeFact
    from fluxqueue.nodepools.pool import NodePool
    from fluxqueue.policy.provision_rules import ProvisionRules
    from fluxqueue.policy.queue_policy import QueuePolicy
    from fluxqueue.policy.queue_rules import PreemptionRules, QueueRules
    from fluxqueue.simulation.gantt import Panel
    from fluxqueue.simulation.growing import GrowingCluster
    from fluxqueue.simulation.learning import DurationSource
    from fluxqueue.simulation.simulated_jobs import NodeEvent, SimulatedJob
    from fluxqueue.simulation.simulator import RunRecord

PROGRESS_FROM = 500
"""Fewer jobs take less than two seconds."""


@with_options(SimOptions)
def sim(options: SimOptions) -> None:
    """Simulate the queue. Exit code 1 if a promise is broken or a job does not finish."""
    if options.from_history or options.history is not None:
        from fluxqueue.cli.time_machine import replay_history

        policies = () if options.policy == ALL else _policy_names(options.policy)
        replay_history(options, policies, _duration_sources(options.durations), _progress)
        return
    _refuse_without_history(
        {
            "--from": options.since,
            "--until": options.until,
            "--add-nodes": options.add_nodes,
            "--queue-weight": options.queue_weight,
            "--save-history": options.save_history,
        }
    )
    _simulate(options)


def _simulate(options: SimOptions) -> None:
    from fluxqueue.graph.match.policy import parse_policy
    from fluxqueue.policy.queue_policy import queue_policy
    from fluxqueue.simulation.arrivals import node_faults
    from fluxqueue.simulation.gantt import check_format, draw
    from fluxqueue.simulation.schedule_figures import render_table
    from fluxqueue.simulation.simulated_jobs import uniform_cluster

    sources = _duration_sources(options.durations)
    nodes, cores, out = options.nodes, options.cores, options.out
    pools, provision = _pools(options.pool or (), options.earlier_by, cores, out)
    rules = _preemption(options.min_runtime, options.grace) if options.preemption else None
    named = None if options.queues is None else _queues_of(options.queues, rules)
    parse_policy(options.match_policy)  # refuse a wrong name before the workload is drawn
    policies = [
        queue_policy(name, queue_depth=options.depth) for name in _policy_names(options.policy)
    ]
    if out is not None:
        check_format(out)
    work, what = _workload(options, named or ())
    if options.save is not None:
        _save(work, options.save, nodes, cores)
    cluster = uniform_cluster(nodes, cores)
    until_s = max((job.submit_s for job in work), default=0)
    names = [fact.name for fact in cluster]
    lost = node_faults(options.seed, names, count=options.faults, until_s=until_s)
    say(f"{len(work)} jobs ({what}) on {nodes} nodes of {cores} cores")
    panels, grown = _run_all(
        policies,
        Scenery(cluster, work, lost, rules, options.match_policy, named, pools, provision, sources),
    )
    typer.echo(render_table([panel.figures for panel in panels]))
    if pools:
        _tell_grown(panels, grown)
    if rules is not None:
        _tell_preempted(panels)
    _tell_left_out(panels[0].records)
    if out is not None:
        draw(panels, out)
        typer.echo(f"wrote {out}")
    if any(one.figures.promises_broken or one.figures.unfinished for one in panels):
        raise typer.Exit(1)


def _workload(options: SimOptions, queues: Collection[str]) -> tuple[Sequence[SimulatedJob], str]:
    """Return the jobs, and in words where they come from."""
    from fluxqueue.simulation.arrivals import WorkloadShape, synthetic, with_urgent

    seed, cores = options.seed, options.cores
    if options.swf is not None:
        work, what = _from_file(options.swf, cores, options.jobs, queues)
    else:
        shape = WorkloadShape(
            load=options.load, overrun_share=options.overrun, is_diurnal=options.diurnal
        )
        made = synthetic(seed, options.jobs, nodes=options.nodes, cores_per_node=cores, shape=shape)
        work, what = made, f"seed {seed}"
    return with_urgent(seed, work, options.urgent), what


def _refuse_without_history(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value:
            raise InvalidSettings(
                "says nothing about a workload that is not recorded",
                where=name,
                hint="add --from-history",
            )


def _pools(
    texts: Sequence[str], earlier_by: str, cores: int, out: Path | None
) -> tuple[list[NodePool], ProvisionRules]:
    """Return the pools, and the rule for asking. Refuse what cannot be drawn."""
    from fluxqueue.policy.provision_rules import ProvisionRules
    from fluxqueue.simulation.growing import parse_pool
    from fluxqueue.workload.annotations import parse_duration

    if texts and out is not None:
        raise InvalidSettings(
            "does not go with --pool: the chart has a fixed number of nodes",
            where="--out",
            hint="leave out one of them",
        )
    pools = [parse_pool(text, cores) for text in texts]
    return pools, ProvisionRules(earlier_s=parse_duration(earlier_by, "--earlier-by"))


def _tell_grown(panels: Sequence[Panel], grown: Sequence[GrowingCluster]) -> None:
    """Print what the new nodes of each policy have cost, beside what they have gained."""
    from fluxqueue.simulation.schedule_figures import clock

    for panel, one in zip(panels, grown, strict=True):
        hours = one.node_s / 3600
        say(
            f"{panel.figures.policy}: at most {one.most} new nodes, {hours:.1f} node-hours,"
            f" cost {one.cost:.2f}, mean wait {clock(panel.figures.mean_wait_s)}"
        )


@dataclass(frozen=True, slots=True)
class Scenery:
    """What all policies of one simulation have in common."""

    cluster: Sequence[NodeFact]
    work: Sequence[SimulatedJob]
    lost: Sequence[NodeEvent]
    preemption: PreemptionRules | None
    match_policy: str
    queues: Mapping[str, QueueRules] | None
    pools: Sequence[NodePool]
    provision: ProvisionRules
    durations: Sequence[DurationSource]


def _duration_sources(text: str) -> list[DurationSource]:
    from fluxqueue.simulation.learning import DurationSource

    names = list(DurationSource) if text == ALL else [one.strip() for one in text.split(",")]
    for name in names:
        if name not in set(DurationSource):
            raise InvalidSettings(
                f"{name!r} is not valid",
                where="--durations",
                value=name,
                hint=f"one of {', '.join(DurationSource)}",
            )
    return [DurationSource(name) for name in names]


def _run_all(
    policies: Sequence[QueuePolicy], of: Scenery
) -> tuple[list[Panel], list[GrowingCluster]]:
    """Simulate each policy with each source of durations.

    Return the results, and what node pools have brought for each.
    """
    from fluxqueue.simulation.gantt import Panel
    from fluxqueue.simulation.schedule_figures import figures
    from fluxqueue.simulation.simulator import SimulatedSite, simulate

    panels: list[Panel] = []
    grown: list[GrowingCluster] = []
    for one, source in product(policies, of.durations):
        name = one.name if len(of.durations) == 1 else f"{one.name}, {source}"
        with _progress(name, len(of.work)) as tell:
            records = simulate(
                of.cluster,
                of.work,
                one,
                site=SimulatedSite(
                    faults=of.lost,
                    match_policy=of.match_policy,
                    pools=of.pools,
                    provision=of.provision,
                    durations=source,
                ),
                preemption=of.preemption,
                queues=of.queues,
                tell=tell,
                grown=grown,
            )
        told = figures(name, records, of.cluster, grown[-1].cpu_s)
        panels.append(Panel(told, records, of.cluster, of.lost))
    return panels, grown


def _policy_names(text: str) -> list[str]:
    from fluxqueue.policy.queue_policy import POLICIES

    if text == ALL:
        return list(POLICIES)
    return [name.strip() for name in text.split(",") if name.strip()] or list(POLICIES)


@contextmanager
def _progress(policy: str, jobs: int) -> Iterator[Callable[[int], None] | None]:
    """Show how many jobs have ended, on a terminal only."""
    import sys

    if not sys.stderr.isatty() or jobs < PROGRESS_FROM:
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(policy, total=jobs)
        yield lambda ended: progress.update(task, completed=ended)


def _queues_of(path: Path, preemption: PreemptionRules | None) -> Mapping[str, QueueRules]:
    import yaml

    from fluxqueue.simulation.named_queues import read_queues

    if preemption is not None:
        raise InvalidSettings(
            "does not go with --queues: each FluxQueue has its own spec.preemption",
            where="--preemption",
        )
    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidSettings(f"cannot be read: {error}", where=str(path)) from None
    return read_queues(documents, path.name)


def _from_file(
    path: Path, cores: int, count: int, queues: Collection[str]
) -> tuple[list[SimulatedJob], str]:
    from fluxqueue.simulation.swf import read_file, to_jobs

    work, skipped = to_jobs(read_file(path), cores_per_node=cores, count=count, queues=queues)
    if not work:
        raise InvalidSettings("has no job with a run time and a size", where=str(path))
    left_out = f", {skipped} lines without a run of their own left out" if skipped else ""
    return work, f"{path.name}{left_out}"


def _save(work: Sequence[SimulatedJob], path: Path, nodes: int, cores: int) -> None:
    from fluxqueue.simulation.swf import from_jobs, render

    header = {"Version": "2.2", "MaxNodes": str(nodes), "MaxProcs": str(nodes * cores)}
    path.write_text(render(from_jobs(work, header)), encoding="utf-8")
    say(f"wrote {path}")


def _preemption(min_runtime: str, grace: str) -> PreemptionRules:
    """Return the rules that ``spec.preemption`` of a FluxQueue would give."""
    from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, PreemptionRules
    from fluxqueue.workload.annotations import parse_duration

    said = (("--min-runtime", min_runtime), ("--grace", grace))
    seconds = [0 if text == "0" else parse_duration(text, name) for name, text in said]
    return PreemptionRules(frozenset({DEFAULT_QUEUE}), *seconds)


def _tell_preempted(panels: Sequence[Panel]) -> None:
    for panel in panels:
        requeued = [one for one in panel.records if one.requeues]
        heads = {uid for one in requeued for uid in one.requeued_for}
        times = sum(one.requeues for one in requeued)
        say(
            f"{panel.figures.policy}: {len(requeued)} jobs were preempted for {len(heads)}"
            f" and restarted {times} times"
        )


def _tell_left_out(records: Sequence[RunRecord]) -> None:
    impossible = [str(one.job.number) for one in records if one.is_impossible]
    if impossible:
        named = ", ".join(impossible[:5]) + (", ..." if len(impossible) > 5 else "")
        say(f"{len(impossible)} jobs can never fit this cluster: {named}")
    refused = [one for one in records if one.refusal]
    if refused:
        say(f"{len(refused)} jobs are refused by their queue: {refused[0].refusal}")
