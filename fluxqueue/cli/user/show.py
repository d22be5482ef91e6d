"""``fluxqueue show``: one job on one screen, as ``scontrol show job`` shows it.

It reads the FluxJob alone, so it needs no view server and no PlacementReview. Each line is a name
and a value. What a job does not have is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_jobs
from fluxqueue.errors import InvalidInput

OUTPUTS = ("table", "json", "yaml", "name")
LABEL_WIDTH = 12


@with_access()
def show(
    access: Access,
    names: Annotated[
        list[str],
        typer.Argument(
            help="names of workloads or FluxJobs, or jobids", autocompletion=complete_jobs
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help=", ".join(OUTPUTS))] = "table",
) -> None:
    """Show all of one job on one screen: state, reason, times, request, placement.

    Examples:

      fluxqueue show train

      fluxqueue show 17 -o yaml
    """
    printing.check_output(output, OUTPUTS)

    async def read(cluster: ClusterAccess) -> list[dict[str, Any]]:
        from fluxqueue.client.fluxjob_lists import find

        return [await find(cluster.client, cluster.one_namespace, name) for name in names]

    for number, fluxjob in enumerate(access.run(read)):
        if output == "table":
            typer.echo("\n" * bool(number) + "\n".join(screen(fluxjob, _now_s())))
        else:
            _print(fluxjob, output)


def _now_s() -> int:
    from fluxqueue.cli.user.jobs import now_s

    return now_s()


def _print(fluxjob: Mapping[str, Any], output: str) -> None:
    from fluxqueue.cli.user.jobs import FULL_NAME

    printer: printing.Printer = printing.Names(FULL_NAME)
    if output == "json":
        typer.echo(json.dumps(fluxjob, indent=2))
        return
    if output == "yaml":
        printer = printing.Yaml()
    printer.write([printer.prepare(fluxjob)])
    printer.close()


def screen(fluxjob: Mapping[str, Any], now: int) -> list[str]:
    """Return the lines of one job. Long values continue below, between words."""
    lines: list[str] = []
    width = max(40, (printing.terminal_width() or 100) - LABEL_WIDTH - 1)
    for label, value in _facts(fluxjob, now):
        for number, part in enumerate(_wrapped(value, width)):
            lines.append(
                f"{'' if number else label:<{LABEL_WIDTH}} {printing.plain(part)}".rstrip()
            )
    return lines


def _facts(fluxjob: Mapping[str, Any], now: int) -> Iterator[tuple[str, str]]:
    from fluxqueue.client.fluxjob_lists import read_line

    line = read_line(fluxjob)
    spec, status = fluxjob["spec"], fluxjob.get("status") or {}
    found: dict[str, str] = {
        "Job": f"{line.name}" + (f" (job {line.jobid})" if line.jobid is not None else ""),
        "Namespace": line.namespace,
        "Workload": f"{line.kind} {line.name}",
        "FluxJob": line.fluxjob,
        "User": line.user,
        "Queue": _queue(line.queue, status),
        "Priority": str(line.priority),
        "State": line.state,
        "Reason": line.reason,
        **_times(line, now),
        "Size": f"{line.size} pods" if line.size != 1 else "1 pod",
        **_request(spec),
        "Nodes": line.nodes,
        **_wishes(spec),
        **_changes(spec),
    }
    return ((label, value) for label, value in found.items() if value)


def _queue(name: str, status: Mapping[str, Any]) -> str:
    position = status.get("position")
    return f"{name}, number {position}" if position else name


def _times(line: Any, now: int) -> dict[str, str]:
    from fluxqueue.cli.user.jobs import clock_time

    found = {"Submitted": f"{clock_time(line.submitted)} ({_ago(line.submitted, now)})"}
    if line.started is None and line.expected is not None:
        ahead = max(0, line.expected - now)
        found["Starts"] = f"~{clock_time(line.expected)} (in {printing.span(ahead)})"
    if line.started is not None:
        found["Started"] = f"{clock_time(line.started)} ({_ago(line.started, now)})"
        found["Runs for"] = printing.span((line.ended or now) - line.started)
    if line.ended is not None:
        found["Ended"] = f"{clock_time(line.ended)} ({_ago(line.ended, now)})"
    return found


def _ago(at_s: int, now: int) -> str:
    return f"{printing.span(now - at_s)} ago"


def _request(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the request in words, and its time limit. An unreadable one is left out."""
    from fluxqueue.jobspec.parse import read_stored
    from fluxqueue.jobspec.shape import describe

    try:
        jobspec = read_stored(spec.get("jobspec") or {})
    except InvalidInput:
        return {}
    duration_s = round(jobspec.duration_s)
    return {
        "Request": describe(jobspec),
        "Time limit": printing.span(duration_s) if duration_s else "none",
    }


def _wishes(spec: Mapping[str, Any]) -> dict[str, str]:
    edges = [f"{one.get('type')}:{one.get('job')}" for one in spec.get("dependsOn") or ()]
    return {
        "Depends on": ", ".join(edges),
        "Not before": str(spec.get("beginTime") or ""),
        "Hold": "yes" if spec.get("hold") else "",
    }


def _changes(spec: Mapping[str, Any]) -> dict[str, str]:
    changed = spec.get("steeredBy") or {}
    return {"Changed by": ", ".join(f"{user} ({what})" for what, user in sorted(changed.items()))}


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
