"""The commands of ``resource-query``: match, cancel, find, update and the rest.

``cli.resource_query`` calls them line by line. As in flux-sched's ``utilities/command.cpp``,
results go to the output of the session, remarks to standard output and errors to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TextIO

from fluxion.formats import jgf
from fluxion.formats.jgf import JgfDocument, parse_jgf
from fluxion.formats.rv1 import Rv1, parse_rv1
from fluxion.formats.writers import write
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.tell.vertex_reasons import why_not
from fluxqueue.errors import (
    FluxQueueError,
    InsufficientResources,
    InvalidInput,
    InvalidJobspec,
    Unsatisfiable,
)
from fluxqueue.jobspec import Jobspec, document, idset
from fluxqueue.jobspec.parse import parse_jobspec

RULE = "INFO: =============================\n"
_FULL_ONLY = {"jgf_shorthand": "jgf", "rv1_shorthand": "rv1"}
"""``find`` shows each vertex on its own, so it never uses the shorthand formats."""


@dataclass(slots=True)
class JobInfo:
    """What ``info`` and ``list`` show of a job."""

    job: int
    state: str
    at: int
    jobspec: str
    overhead_s: float

    def line(self) -> str:
        return f"INFO: {self.job}, {self.state}, {self.at}, {self.jobspec}, {self.overhead_s:g}"


class Session:
    """One resource-query session: a matcher, a job counter, and the output."""

    def __init__(
        self,
        matcher: FluxionMatcher,
        match_format: str,
        out: TextIO,
        *,
        shows_elapsed: bool = False,
    ) -> None:
        self.matcher, self.match_format, self.out = matcher, match_format, out
        self.shows_elapsed = shows_elapsed
        self.next_job = 1
        self.jobs: dict[int, JobInfo] = {}

    def run_line(self, line: str) -> bool:
        """Run one line. Return False if it ends the session. Unknown commands change nothing."""
        words = line.split()
        if not words or words[0].startswith("#"):
            return True
        command = COMMANDS.get(words[0])
        if command is None:
            _complain(f"unknown command {words[0]!r} (help lists them)")
            return True
        if command.run is None:
            return False
        try:
            command.run(self, words)
        except FluxQueueError as failure:
            _complain(str(failure))
        return True

    # -- matching ---------------------------------------------------------------------------

    def match(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed(words)
        elif words[1] not in set(SearchVerb):
            _complain(f"unknown subcmd {words[1]!r} (one of {', '.join(SearchVerb)})")
        else:
            self._match_one(SearchVerb(words[1]), words[2])

    def multi_match(self, words: list[str]) -> None:
        if len(words) <= 3:
            _malformed(words)
        elif words[1] not in set(SearchVerb):
            _complain(f"unknown subcmd {words[1]!r} (one of {', '.join(SearchVerb)})")
        else:
            for name in words[2:]:
                if not self._match_one(SearchVerb(words[1]), name):
                    break

    def _match_one(self, verb: SearchVerb, name: str) -> bool:
        try:
            text = read_file(name, document.MAX_BYTES)
        except InvalidInput as refusal:
            _complain(str(refusal))
            return True
        job = self.next_job
        started = perf_counter()
        found: ResourceSet | None = None
        failure: FluxQueueError | None = None
        jobspec: Jobspec | None = None
        try:
            jobspec = parse_jobspec(text)
            found = self.matcher.match(jobspec, job, verb=verb)
        except (InvalidJobspec, InsufficientResources, Unsatisfiable) as refusal:
            failure = refusal
        result = write(found, self.match_format) if found is not None else ""
        elapsed = perf_counter() - started
        if isinstance(failure, InvalidJobspec):
            _complain(f"Jobspec error for {job}: {failure}")
        elif verb.commits:
            self.next_job += 1
        self.out.write(result)
        if verb is SearchVerb.SATISFIABILITY:
            self._show_satisfiability(failure, elapsed)
        elif found is None:
            self._show_failure(job, failure, elapsed)
        else:
            self._show_success(found, job, name, elapsed, is_booked=verb.commits)
        if jobspec is not None and isinstance(failure, (InsufficientResources, Unsatisfiable)):
            now = None if isinstance(failure, Unsatisfiable) else 0
            why = why_not(self.matcher.by_vertices, jobspec, now)
            print(f"WHY: {why}", file=sys.stderr)  # Fluxion's output has no place for the reason
        return failure is None

    def _show_satisfiability(self, failure: FluxQueueError | None, elapsed: float) -> None:
        word = "Satisfiable" if failure is None else "Unsatisfiable"
        self.out.write(f"{RULE}INFO: {word} request\n{RULE}")
        self._show_elapsed(elapsed)

    def _show_failure(self, job: int, failure: FluxQueueError | None, elapsed: float) -> None:
        self.out.write(f"{RULE}INFO: No matching resources found\n")
        if isinstance(failure, Unsatisfiable):
            self.out.write("INFO: Unsatisfiable request\n")
        self.out.write(f"INFO: JOBID={job}\n")
        if self.shows_elapsed:
            self.out.write(f"INFO: ELAPSE={elapsed:f}\n")
        self.out.write(RULE)

    def _show_success(
        self, found: ResourceSet, job: int, name: str, elapsed: float, *, is_booked: bool
    ) -> None:
        mode = "MATCHED"
        if is_booked:
            mode = "RESERVED" if found.is_reserved else "ALLOCATED"
            self.jobs[job] = JobInfo(job, mode, found.at, name, elapsed)
        when = str(found.at) if found.is_reserved else "Now"
        self.out.write(
            f"{RULE}INFO: JOBID={job}\nINFO: RESOURCES={mode}\nINFO: SCHEDULED AT={when}\n"
        )
        self._show_elapsed(elapsed)
        self.out.write(RULE)

    def _show_elapsed(self, elapsed: float) -> None:
        if self.shows_elapsed:
            print(f"INFO: ELAPSE={elapsed:f}")

    # -- booked jobs --------------------------------------------------------------------------

    def update(self, words: list[str]) -> None:
        if len(words) != 7:
            _malformed(words)
            return
        if words[1] not in ("allocate", "reserve"):
            _complain(f"unknown subcmd {words[1]!r} (allocate or reserve)")
            return
        job, at, duration_s = (_number(word) for word in words[4:7])
        if job in self.matcher.state.bookings:
            _complain(f"existing Jobid {job} (cancel it first)")
            return
        if at < 0 or duration_s == 0:
            _complain(
                f"invalid time: starttime {at} must be at least 0, duration {duration_s} at least 1"
            )
            return
        started = perf_counter()
        found: ResourceSet | None = None
        failure: FluxQueueError | None = None
        try:
            given = self.matcher.read_given(_read(words[2], words[3]))
            found = self.matcher.update(given, job, at=at, duration_s=duration_s)
        except InvalidInput as refusal:
            failure = refusal
            _complain(f"traverser run () returned error: {refusal}")
        elapsed = perf_counter() - started
        if found is None:
            self._show_failure(job, failure, elapsed)
        else:
            self.out.write(write(found, self.match_format))
            self._show_success(found, job, words[3], elapsed, is_booked=True)
        self.next_job = job + 1

    def cancel(self, words: list[str]) -> None:
        if len(words) not in (2, 3):
            _malformed(words)
            return
        job = _number(words[1])
        if job not in self.matcher.state.bookings:
            _complain(f"nonexistent job {words[1]}")
            return
        visited, held = visit_counts(self.matcher, job)
        self.matcher.cancel(job)
        self.jobs[job].state = "CANCELED"
        if words[2:] == ["stats"]:
            self._show_counts("CANCEL", visited, held)

    def partial_cancel(self, words: list[str]) -> None:
        if len(words) not in (4, 5):
            _malformed(words)
            return
        job = _number(words[1])
        booking = self.matcher.state.bookings.get(job)
        if booking is None:
            _complain(f"nonexistent job {job}")
        elif booking.is_reservation:
            _complain("reservations not currently supported by partial cancel")
        else:
            given = _read(words[2], words[3], needs_hosts=False)
            if self.matcher.cancel_part(job, given):
                self.jobs[job].state = "CANCELED"
            if words[4:] == ["stats"]:
                # Fluxion's partial cancel goes directly to the vertices and counts none.
                self._show_counts("PARTIAL CANCEL", 0, 0)

    def _show_counts(self, what: str, visited: int, held: int) -> None:
        self.out.write(
            f'{RULE}INFO: {what} PREORDER COUNT="{visited}"\n'
            f'INFO: {what} POSTORDER COUNT="{held}"\n{RULE}'
        )

    def info(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed(words)
            return
        found = self.jobs.get(_number(words[1]))
        if found is None:
            _complain(f"nonexistent job {words[1]} (list shows them)")
        else:
            print(found.line())

    def list_jobs(self, _: list[str]) -> None:
        for _job, found in sorted(self.jobs.items()):
            print(found.line())

    # -- the graph ----------------------------------------------------------------------------

    def find(self, words: list[str]) -> None:
        if len(words) < 2:
            _malformed(words)
            return
        expression = " ".join(words[1:])
        found = self.matcher.find(expression)
        self.out.write(write(found, _FULL_ONLY.get(self.match_format, self.match_format)))
        self.out.write(f'{RULE}INFO: EXPRESSION="{expression}"\n{RULE}')

    def attach(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed(words)
        else:
            joining = parse_jgf(read_file(words[1], jgf.MAX_BYTES))
            for found in joining.vertices:
                found.vertex.unit = ""
            self.matcher.attach(joining)

    def remove(self, words: list[str]) -> None:
        if len(words) != 3 or words[2] not in ("true", "false"):
            _malformed(words)
        elif words[2] == "false":
            self.matcher.remove_ranks(idset.decode(words[1]))
        else:
            found = self.matcher.graph.find_path(words[1])
            if found:
                self.matcher.remove_subtree(found[0])
            else:
                _complain(f"can't remove subgraph: the graph has no path {words[1]}")

    def set_property(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed(words)
            return
        key, equals, value = words[2].partition("=")
        if not key or not equals or not value:
            self.out.write(
                "Incorrect input format. \nPlease use `set-property <resource> PROPERTY=VALUE`.\n"
            )
            return
        found = self.matcher.graph.find_path(words[1])
        if not found:
            self.out.write(f"Couldn't find path {words[1]} in resource graph.\n")
        for v in found:
            self.matcher.set_property(v, key, value)

    def get_property(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed(words)
            return
        for v in self._at_path(words[1]):
            properties = self.matcher.graph.properties.get(v, {})
            if not properties:
                uniq_id = self.matcher.graph.uniq_id[v]
                self.out.write(
                    f"No properties were found for {words[1]} (vtx's uniq_id={uniq_id}).\n"
                )
            for key, value in sorted(properties.items()):
                self.out.write(f"{key}={value}\n")

    def set_status(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed(words)
            return
        for v in self._at_path(words[1]):
            if words[2] not in ("up", "down"):
                _complain(f"unrecognized status {words[2]!r} (up or down)")
                return
            self.matcher.set_status(v, is_up=words[2] == "up")

    def get_status(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed(words)
            return
        for v in self._at_path(words[1]):
            status = "down" if v in self.matcher.graph.down else "up"
            self.out.write(f"{words[1]} is {status}\n")

    def _at_path(self, path: str) -> list[int]:
        found = self.matcher.graph.find_path(path)
        if not found:
            self.out.write(f"Could not find path {path} in resource graph.\n")
        return found

    # -- the session --------------------------------------------------------------------------

    def stat(self, _: list[str]) -> None:
        times = [job.overhead_s for job in self.jobs.values()] or [0.0]
        print(f"INFO: Num. of Jobs Matched: {len(self.jobs)}")
        print(f"INFO: Min. Match Time: {min(times):g}")
        print(f"INFO: Max. Match Time: {max(times):g}")
        print(f"INFO: Avg. Match Time: {sum(times) / len(times):g}")

    def cat(self, words: list[str]) -> None:
        for name in words[1:2]:
            print(read_file(name, document.MAX_BYTES).decode(errors="replace"), end="")
            print(f"INFO: Jobspec in {name}")

    def help(self, words: list[str]) -> None:
        shown = [
            c
            for name, c in COMMANDS.items()
            if name == c.name and words[1:] in ([], [name], [c.short])
        ]
        for command in shown:
            print(f"INFO: {command.name} ({command.short}) -- {command.note}")
        if not shown:
            print(f"ERROR: unknown command: {words[1]}")


@dataclass(frozen=True, slots=True)
class Command:
    """One word of the language. ``run`` is None for the word that ends the session."""

    name: str
    short: str
    run: Callable[[Session, list[str]], None] | None
    note: str


_TABLE = (
    Command("match", "m", Session.match, f"match {{{'|'.join(SearchVerb)}}} jobspec"),
    Command("multi-match", "M", Session.multi_match, "multi-match subcmd jobspec1 jobspec2 ..."),
    Command("update", "u", Session.update,
            "book a given R: update {allocate|reserve} {jgf|jgf_shorthand|rv1exec} file jobid "
            "starttime duration"),
    Command("attach", "j", Session.attach, "grow the graph: attach jgf_file"),
    Command("remove", "j", Session.remove,
            "shrink the graph: remove {path true | ranks false}"),
    Command("find", "f", Session.find,
            "find vertices: find status=down and sched-now=allocated. Predicates: status={up|down} "
            "sched-now={allocated|free} sched-future={reserved|free} names=hostlist "
            "property=name jobid-alloc=id jobid-reserved=id jobid-span=id jobid-tag=id "
            "agfilter={true|false}"),
    Command("cancel", "c", Session.cancel, "give back what a job holds: cancel jobid"),
    Command("partial-cancel", "pc", Session.partial_cancel,
            "give a part back: partial-cancel jobid {jgf|rv1exec} file"),
    Command("set-property", "p", Session.set_property, "set-property path PROPERTY=VALUE"),
    Command("get-property", "g", Session.get_property, "get-property path"),
    Command("set-status", "t", Session.set_status, "set-status path {up|down}"),
    Command("get-status", "e", Session.get_status, "get-status path"),
    Command("list", "l", Session.list_jobs, "list all jobs"),
    Command("info", "i", Session.info, "show one job: info jobid"),
    Command("stat", "s", Session.stat, "show match times"),
    Command("cat", "a", Session.cat, "show a jobspec file"),
    Command("help", "h", Session.help, "help [command]"),
    Command("quit", "q", None, "end the session"),
)  # fmt: skip
COMMANDS: dict[str, Command] = {}
for _command in _TABLE:
    COMMANDS.setdefault(_command.name, _command)
    COMMANDS.setdefault(_command.short, _command)


def visit_counts(matcher: FluxionMatcher, job: int) -> tuple[int, int]:
    """Return the vertices that Fluxion's cancel visits, and how many of them the job holds.

    Held means held or shared. Fluxion walks from the root, and looks at every child of a vertex
    with the job's tag.
    """
    graph = matcher.graph
    visited, held = 1, 0
    for v, _ in ResourceSet(graph, matcher.state.bookings[job]).vertices():
        held += 1
        visited += len(graph.children.get(v, ()))
    return visited, held


def _read(reader: str, name: str, *, needs_hosts: bool = True) -> JgfDocument | Rv1:
    if reader not in ("jgf", "jgf_shorthand", "rv1exec"):
        raise InvalidInput(
            f"unsupported reader {reader}",
            where="reader",
            value=reader,
            hint="jgf, jgf_shorthand or rv1exec",
        )
    data = read_file(name, jgf.MAX_BYTES)
    if reader == "rv1exec":
        return parse_rv1(data, needs_hosts=needs_hosts)
    found = parse_jgf(data)
    found.is_shorthand = reader == "jgf_shorthand"
    return found


def read_file(name: str, most: int) -> bytes:
    """Return the content of a file, at most ``most`` + 1 bytes.

    One byte too many is enough for the caller to refuse the file.

    Raises
    ------
    InvalidInput
        The file cannot be read.
    """
    try:
        with Path(name).open("rb") as file:
            return file.read(most + 1)
    except OSError as failure:
        reason = failure.strerror or str(failure)
    except ValueError as failure:  # a NUL in the name
        reason = str(failure)
    raise InvalidInput(f"can't open {name}: {reason}")


def _number(word: str) -> int:
    """Parse a number as strtoll does: the leading digits, else 0."""
    digits = ""
    for position, character in enumerate(word[:19]):
        if not (character in "0123456789" or (character == "-" and position == 0)):
            break
        digits += character
    return int(digits) if digits.strip("-") else 0


def _malformed(words: list[str]) -> None:
    _complain(f"malformed command {words[0]} ({COMMANDS[words[0]].note})")


def _complain(message: str) -> None:
    print(f"ERROR: {message}", file=sys.stderr)
