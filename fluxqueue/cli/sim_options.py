"""The options of ``fluxqueue sim``, which ``sim`` and ``time_machine`` read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fluxqueue.process.settings import MATCH_POLICY

ALL = "all"


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The options of ``fluxqueue sim``."""

    seed: Annotated[int, typer.Option(help="random seed of the workload")] = 1
    jobs: Annotated[
        int, typer.Option(min=1, help="number of jobs (from a file: the first ones)")
    ] = 200
    nodes: Annotated[int, typer.Option(min=1)] = 32
    cores: Annotated[int, typer.Option(min=1, help="cores of each node")] = 16
    policy: Annotated[
        str, typer.Option(help="fcfs, easy, hybrid, conservative, several with commas, or all")
    ] = ALL
    match_policy: Annotated[
        str, typer.Option(help="order in which nodes are filled: pack, lonode, spread, ...")
    ] = MATCH_POLICY
    durations: Annotated[
        str,
        typer.Option(
            help="planned run times: declared, learned or perfect, several with commas, or all"
        ),
    ] = "declared"
    swf: Annotated[
        Path | None, typer.Option(help="read the jobs from this file (SWF, also .gz)")
    ] = None
    queues: Annotated[
        Path | None, typer.Option(help="named queues: a file with FluxQueues (YAML)")
    ] = None
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="draw the Gantt chart into FILE.svg, .png or .pdf"),
    ] = None
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", "--to-swf", help="write the jobs as SWF (a history: with its waits)"
        ),
    ] = None
    load: Annotated[float, typer.Option(help="arriving work as a share of the capacity")] = 1.1
    overrun: Annotated[
        float, typer.Option(min=0, max=1, help="share of jobs that run past their duration")
    ] = 0.0
    faults: Annotated[int, typer.Option(min=0, help="nodes that fail during the simulation")] = 0
    depth: Annotated[int, typer.Option(min=1, help="jobs that one cycle examines")] = 1000
    diurnal: Annotated[bool, typer.Option("--diurnal", help="arrivals follow the time of day")] = (
        False
    )
    urgent: Annotated[
        float, typer.Option(min=0, max=1, help="share of jobs of a higher priority")
    ] = 0.0
    preemption: Annotated[
        bool,
        typer.Option(
            "--preemption", help="requeue jobs of lower priority for the head of the queue"
        ),
    ] = False
    min_runtime: Annotated[
        str, typer.Option(help="with --preemption: least run time of a victim: 10m")
    ] = "0"
    grace: Annotated[
        str, typer.Option(help="with --preemption: time between notice and requeue: 30s")
    ] = "0"
    pool: Annotated[
        list[str] | None,
        typer.Option(help="nodes that can be asked for, NAME=MIN..MAX,TIME,PRICE: a=0..16,4m,3.1"),
    ] = None
    earlier_by: Annotated[
        str, typer.Option(help="with --pool: new nodes must start a job earlier by this time")
    ] = "1s"
    from_history: Annotated[
        bool,
        typer.Option(
            "--from-history", help="replay what the database recorded, with changes, and compare"
        ),
    ] = False
    since: Annotated[
        str, typer.Option("--from", help="with --from-history: begin (default 1d): 2030-01-31, 12h")
    ] = ""
    until: Annotated[
        str, typer.Option(help="with --from-history: end (default now): 2030-01-31T08:00, 1h")
    ] = ""
    add_nodes: Annotated[
        list[str] | None,
        typer.Option(help="with --from-history: 8:gpu-1 (like that node), 8:cpu=64,memory=256Gi"),
    ] = None
    queue_weight: Annotated[
        list[str] | None,
        typer.Option(help="with --from-history: weight of a queue: batch=2, or batch=x2"),
    ] = None
    history: Annotated[
        Path | None,
        typer.Option(help="replay this file of --save-history instead of the database"),
    ] = None
    save_history: Annotated[
        Path | None, typer.Option(help="with --from-history: write what was read into FILE")
    ] = None
    database_url: Annotated[str, typer.Option(help="with --from-history: default DATABASE_URL")] = (
        ""
    )
