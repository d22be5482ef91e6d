"""``fluxqueue explain``: when a job starts, what blocks it, what would start earlier.

It creates a PlacementReview, waits for the answer, prints it and deletes the review. The answer is
the matcher's own. The exit code tells which one it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.option_class import with_options
from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import (
    BAD_INPUT,
    DONE,
    NEVER,
    NOT_YET,
    REFUSED,
    Access,
    ClusterAccess,
    with_access,
)
from fluxqueue.cli.user.complete import complete_jobs, complete_queues
from fluxqueue.errors import InvalidInput
from fluxqueue.workload.objects import Object

EXIT_CODES = {"Now": DONE, "Later": NOT_YET, "Never": NEVER}
UNANSWERED = {"Invalid": BAD_INPUT, "NotFound": BAD_INPUT}
"""Exit codes by reason if there is no verdict. For all other reasons it is REFUSED."""

TIMEOUT = "30s"
_INDENT = "  "


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The options of ``fluxqueue explain``."""

    job: Annotated[
        str | None,
        typer.Argument(help="name of a workload, or a jobid", autocompletion=complete_jobs),
    ] = None
    file: Annotated[
        str, typer.Option("--file", "-f", help="a Job, Pod, jobspec or script (-: standard input)")
    ] = ""
    size: Annotated[int | None, typer.Option(min=1, help="with this number of pods")] = None
    time: Annotated[
        str, typer.Option("--time", "-t", help="with this duration: 90s, 2h30m, 0: no limit")
    ] = ""
    queue: Annotated[
        str,
        typer.Option("--queue", "-q", help="in this queue", autocompletion=complete_queues),
    ] = ""
    priority: Annotated[int | None, typer.Option(help="with this requested priority")] = None
    within: Annotated[
        str | None, typer.Option(help='all within one rack, zone, ... ("": anywhere)')
    ] = None
    request: Annotated[
        list[str] | None,
        typer.Option("--request", help="with this request per pod: cpu=4, memory=8Gi"),
    ] = None
    timeout: Annotated[str, typer.Option(help="longest wait for the answer")] = TIMEOUT
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or yaml")] = "table"


@with_access()
@with_options(ExplainOptions)
def explain(access: Access, options: ExplainOptions) -> None:
    """Show when a job starts, what blocks it, and which changes would start it earlier.

    Exit code 0: now (or it has its nodes), 3: later, 4: never without a change.

    Examples:

      fluxqueue explain train

      fluxqueue explain train --size 4 --time 30m

      fluxqueue explain -f job.yaml && kubectl apply -f job.yaml
    """
    from fluxqueue.client.explanation import changes_of
    from fluxqueue.workload.annotations import parse_duration

    printing.check_output(options.output, ("table", "json", "yaml"))
    if not options.job and not options.file:
        raise InvalidInput("needs the name of a job, or a file with -f", where="explain")
    limit_s = float(parse_duration(options.timeout, "--timeout"))
    changes = changes_of(
        size=options.size, time=options.time, queue=options.queue, priority=options.priority,
        within=options.within, requests=_amounts(options.request or ()),
    )  # fmt: skip
    asked = read_file(options.file) if options.file else {}

    async def work(cluster: ClusterAccess) -> Object:
        from fluxqueue.client.fluxjob_lists import find

        spec = dict(asked)
        if options.job:
            found = await find(cluster.client, cluster.one_namespace, options.job)
            spec["fluxJob"] = found["metadata"]["name"]
        if changes:
            spec["changes"] = changes
        return await ask(cluster, spec, limit_s)

    review = access.run(work)
    tell(review, options.output, options.job or _name_in(asked))
    if code := exit_code(review):
        raise typer.Exit(code)


def _amounts(requests: Sequence[str]) -> dict[str, str]:
    amounts = {}
    for one in requests:
        name, equals, amount = one.partition("=")
        if not equals or not name or not amount:
            raise InvalidInput(
                "needs an amount", where="--request", value=one, hint="such as cpu=4"
            )
        amounts[name] = amount
    return amounts


def read_file(name: str) -> dict[str, Any]:
    """Return the part of a review's spec for a file: a manifest, a jobspec, or a script.

    Raises
    ------
    InvalidInput
        The file cannot be read, or contains none of these.
    """
    from fluxqueue.client.documents import is_workload, read_document

    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"cannot be read: {error.strerror}", where=name, hint="name a file, or - for the input"
        ) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"is not a text file: {error}", where=name, hint="save it as UTF-8"
        ) from None
    if text.startswith("#!") and name != "-":
        return {"manifest": _job_of_script(name)}
    document = read_document(text, name)
    return {"manifest" if is_workload(document) else "jobspec": document}


def _job_of_script(name: str) -> dict[str, Any]:
    from dataclasses import replace

    from fluxqueue.client.batch.job_manifest import job_manifest, read_command

    request = read_command([name])
    return job_manifest(replace(request, image=request.image or "unsaid"))


def _name_in(asked: Object) -> str:
    return str(((asked.get("manifest") or {}).get("metadata") or {}).get("name") or "it")


async def ask(cluster: ClusterAccess, spec: Object, limit_s: float) -> Object:
    """Ask the queue, as ``kube.placement_reviews.ask`` does."""
    from fluxqueue.kube import placement_reviews

    return await placement_reviews.ask(cluster.client, cluster.one_namespace, spec, limit_s)


def exit_code(review: Object) -> int:
    """Return the exit code for an answer."""
    status = review["status"]
    verdict = status.get("verdict")
    return EXIT_CODES[verdict] if verdict else UNANSWERED.get(status["reason"], REFUSED)


# --- words ---------------------------------------------------------------------------------------


def tell(review: Object, output: str, name: str) -> None:
    """Print an answer, or on standard error why there is none."""
    status = review["status"]
    if output in {"json", "yaml"}:
        printing.document(review, output)
    elif not status.get("verdict"):
        complain(f"fluxqueue: {status['message']}")
    else:
        for line in prose(status, name):
            printing.say(line, 2 * _INDENT)
        _tables(status)


def prose(status: Object, name: str) -> list[str]:
    """Return the answer in sentences."""
    from fluxqueue.fluxjob.times import from_rfc3339

    verdict = status["verdict"]
    answered_s = from_rfc3339(status["answeredAt"])
    number = f" (job {status['jobid']})" if "jobid" in status else ""
    head = f"{name}{number}: {_when(status, answered_s)}"
    if printing.is_coloured():
        colour = {"Now": "green", "Later": "yellow", "Never": "red"}[verdict]
        head = typer.style(head, fg=colour)
    lines = [head]
    if request := status.get("request"):
        lines.append(f"{_INDENT}asks for {request}")
    if verdict != "Now":
        lines.append(f"{_INDENT}{status['message']}")
    if nodes := status.get("nodes"):
        lines.append(f"{_INDENT}on {nodes}")
    if queue := status.get("queue"):
        turn = f"number {queue['position']} of {queue['waiting']} in queue {queue['name']}"
        lines.append(f"{_INDENT}{turn}, priority {queue['priority']}")
    return lines


_SURE = {"Estimated": " according to the plan", "AtBest": " at best"}


def _when(status: Object, answered_s: int) -> str:
    from fluxqueue.fluxjob.times import from_rfc3339

    verdict, start = status["verdict"], status.get("expectedStart")
    if verdict == "Never":
        return "never without a change"
    if verdict == "Now":
        return f"has its nodes since {start}" if status["reason"] == "HasItsNodes" else "now"
    if start is None:
        return "later, at an unknown time"
    in_s = from_rfc3339(start) - answered_s
    certainty, latest = status.get("certainty", ""), status.get("expectedBy", start)
    by = "" if latest == start else f", by {latest}"
    sure = f"{by} at the latest" if certainty == "Promised" else _SURE.get(certainty, "")
    if by and certainty != "Promised":
        sure = f"{sure}{by} (9 of 10)"
    return f"later, {start} (in {printing.span(in_s)}){sure}"


def _tables(status: Object) -> None:
    from fluxqueue.fluxjob.times import from_rfc3339

    for kind in status.get("kinds") or ():
        typer.echo("")
        printing.TextTable(("NODES WITH", "IN ALL", "NOW")).write(_checks(kind))
    if levels := status.get("levels"):
        typer.echo("")
        printing.TextTable(("LEVEL", "NEEDED", "OF", "COULD", "CAN NOW", "EACH WITH")).write(
            [
                (
                    one["level"],
                    str(one["wanted"]),
                    str(one["places"]),
                    str(one["couldHold"]),
                    str(one["canHoldNow"]),
                    one["contents"],
                )
                for one in levels
            ]
        )
    if blockers := status.get("blockers"):
        typer.echo("")
        printing.TextTable(("IN THE WAY", "JOBID", "NAMESPACE", "STATE", "NODES", "UNTIL")).write(
            [
                (
                    one["name"],
                    str(one.get("jobid", "")),
                    one.get("namespace", ""),
                    one["state"].lower(),
                    str(one["nodes"]),
                    one.get("until", "no known end"),
                )
                for one in blockers
            ]
        )
        if more := status.get("furtherBlockers"):
            typer.echo(f"and {more} more")
    if variants := status.get("variants"):
        typer.echo("")
        answered_s = from_rfc3339(status["answeredAt"])
        printing.TextTable(("EARLIER", "START")).write(
            [(one["text"], _when(one, answered_s).removeprefix("later, ")) for one in variants]
        )


def _checks(kind: Object) -> list[tuple[str, ...]]:
    together, word = kind["together"], kind["unit"].lower()
    rows: list[tuple[str, ...]] = [
        (one["name"], str(one["nodes"]), str(one["freeNodes"])) for one in kind.get("checks") or ()
    ]
    rows.append(("all of these", str(together["nodes"]), str(together["freeNodes"])))
    rows.append(
        (
            f"{word}s that fit, of {kind['wanted']} needed",
            str(together["units"]),
            str(together["freeUnits"]),
        )
    )
    if together["unpromisedUnits"] != together["freeUnits"]:
        rows.append((f"{word}s that fit, not promised", "", str(together["unpromisedUnits"])))
    return rows
