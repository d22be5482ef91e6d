"""The Standard Workload Format, version 2.2: reader, writer, and jobs for the simulator.

It is the common format of the Parallel Workloads Archive. Sources: Chapin et al., "Benchmarks and
Standards for the Evaluation of Parallel Job Schedulers", JSSPP 1999. Feitelson, "The standard
workload format", https://www.cs.huji.ac.il/labs/parallel/workload/swf.html.

Each job is a line of 18 numbers, with -1 for unknown. Lines that begin with ``;`` are comments.
Comments of the form ``; Key: value`` make the header. Pure except for ``read_file``, which also
reads ``.gz``.
"""

from __future__ import annotations

import codecs
import gzip
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec.shape import total
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE
from fluxqueue.simulation.recorded_day import RecordedDay
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request

UNKNOWN = -1
FIELDS = 18
JOBS_MAX = 5_000_000
NUMBER_MAX = 10**12
"""Largest number of a field. Thirty thousand years in seconds are less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwfJob:
    """One line, in the order of the format. Times are in seconds, memory in KB per processor."""

    number: int
    submit_s: int
    wait_s: int = UNKNOWN
    run_s: int = UNKNOWN
    processors: int = UNKNOWN
    cpu_s: float = UNKNOWN
    memory_kb: float = UNKNOWN
    asked_processors: int = UNKNOWN
    asked_s: int = UNKNOWN
    asked_memory_kb: float = UNKNOWN
    status: int = UNKNOWN
    user: int = UNKNOWN
    group: int = UNKNOWN
    executable: int = UNKNOWN
    queue: int = UNKNOWN
    partition: int = UNKNOWN
    preceding: int = UNKNOWN
    think_s: int = UNKNOWN


_COLUMNS = [(one.name, one.type == "float") for one in fields(SwfJob)]
"""Name of each field, and whether it may be a fraction."""

_REQUIRED = {"number", "submit_s"}
_TIMES = {"submit_s", "wait_s", "run_s", "asked_s", "think_s"}
"""Fields in seconds. Some logs have fractions: submissions are rounded down, others up."""

PARTIAL = frozenset({2, 3, 4})
"""Status of the partial executions of a job that was checkpointed. A line of its own sums it up."""

COMPLETED, CANCELLED = 1, 5
_STATUS = 10
_PARTIAL_WORDS = frozenset(map(str, PARTIAL))


@dataclass(frozen=True, slots=True)
class SwfLog:
    """A whole file: the header's fields as written, and the jobs in order."""

    header: Mapping[str, str] = field(default_factory=dict)
    jobs: tuple[SwfJob, ...] = ()
    queues: Mapping[int, str] = field(default_factory=dict, compare=False)
    """Names of the queues by number, from header lines such as ``; Queue: 1 batch``."""


def read_file(path: Path) -> SwfLog:
    """Read a file, gzip-compressed if its name ends in ``.gz``.

    Raises
    ------
    InvalidInput
        It cannot be read, or a line is not SWF. The message names line and field.
    """
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(
            f"cannot be read: {error}", where=str(path), hint="name an SWF file, plain or .gz"
        ) from error
    return parse(_decode(data), source=path.name)


def _decode(data: bytes) -> str:
    """Return the text. Comments are in any encoding, and numbers are ASCII in all of them."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def parse(text: str, *, source: str = "SWF") -> SwfLog:
    """Read a whole text. Errors begin with ``source``."""
    header: dict[str, str] = {}
    jobs: list[SwfJob] = []
    queues: dict[int, str] = {}
    # Not splitlines: it also ends lines at characters that comments in other encodings contain.
    for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        content = line.strip()
        if content.startswith(";"):
            key, colon, value = content.lstrip("; ").partition(":")
            if colon and key and " " not in key:
                header.setdefault(key, value.strip())
                if key == "Queue" and (found := re.match(r"\s*(\d{1,9})\s+(\S+)", value)):
                    queues[int(found[1])] = found[2].lower()
        elif content:
            jobs.append(_parse_line(content.split(), f"{source}, line {number}"))
            if len(jobs) > JOBS_MAX:
                raise InvalidInput(
                    f"has more than {JOBS_MAX} jobs", where=source, hint="cut the file into parts"
                )
    return SwfLog(header, tuple(jobs), queues)


def _parse_line(words: list[str], where: str) -> SwfJob:
    if len(words) != FIELDS:
        raise InvalidInput(
            f"has {len(words)} fields",
            where=where,
            hint=f"{FIELDS} numbers, {UNKNOWN} for what is not known",
        )
    # Only the first of the partial executions of a job has a submission.
    required = {"number"} if words[_STATUS] in _PARTIAL_WORDS else _REQUIRED
    values = {
        name: _parse_field(
            word, f"{where}, field {place} ({name})", is_fraction, name, name in required
        )
        for place, (word, (name, is_fraction)) in enumerate(
            zip(words, _COLUMNS, strict=True), start=1
        )
    }
    return SwfJob(**values)  # type: ignore[arg-type]


def _parse_field(
    word: str, where: str, is_fraction: bool, name: str, is_required: bool
) -> int | float:
    try:
        number = float(word)
        if not math.isfinite(number):
            raise ValueError(word)
    except ValueError as error:
        raise InvalidInput(
            f"{word!r} is no number", where=where, value=word, hint=f"{UNKNOWN} for not known"
        ) from error
    if number < 0 and (number != UNKNOWN or is_required):
        raise InvalidInput(f"{word} is below 0", where=where, value=word, hint="a number from 0 on")
    if number > NUMBER_MAX:
        raise InvalidInput(
            f"{word} is above {NUMBER_MAX}",
            where=where,
            value=word,
            hint=f"{UNKNOWN} for not known",
        )
    if is_fraction and number != int(number):
        return number
    if name in _TIMES:
        return math.floor(number) if name == "submit_s" else math.ceil(number)
    if number != int(number):
        raise InvalidInput(
            f"{word} is no whole number", where=where, value=word, hint="write it without fraction"
        )
    return int(number)


def render(log: SwfLog) -> str:
    """Return a log as text, which ``parse`` can read."""
    lines = [
        f"; {key}: {value}".rstrip()
        for key, value in log.header.items()
        if key != "Queue" or not log.queues
    ]
    lines += [f"; Queue: {number} {name}" for number, name in sorted(log.queues.items())]
    lines += [" ".join(f"{getattr(job, name):.12g}" for name, _ in _COLUMNS) for job in log.jobs]
    return "\n".join(lines) + "\n"


def to_jobs(
    log: SwfLog,
    *,
    cores_per_node: int,
    count: int | None = None,
    queues: Collection[str] | None = None,
) -> tuple[list[SimulatedJob], int]:
    """Return simulator jobs, and the number of lines that were left out.

    Jobs without a run time or without a size are left out: they were cancelled before they started,
    or the data is missing. So are partial executions, because their job has a line of its own. A
    run time of 0 is less than a second, and counts as one. The time of the first submission becomes
    0. A job without a requested time asks for its run time. Jobs that ran longer than requested
    overrun here too.

    ``queues`` are the names of the simulated queues. A job goes to the one that the header or the
    number of its queue names, and to the default one if there is none.
    """
    usable = _usable_lines(log)
    skipped = len(log.jobs) - len(usable)
    usable = usable[:count]
    first_s = usable[0].submit_s if usable else 0
    jobs = [
        SimulatedJob(
            number=place,
            submit_s=job.submit_s - first_s,
            request=cores_request(
                _processors(job),
                job.asked_s if job.asked_s > 0 else max(1, job.run_s),
                cores_per_node=cores_per_node,
            ),
            runs_s=max(1, job.run_s),
            user="" if job.user == UNKNOWN else f"user{job.user}",
            queue=_queue_of(job, log, queues or ()),
        )
        for place, job in enumerate(usable, start=1)
    ]
    return jobs, skipped


def _usable_lines(log: SwfLog) -> list[SwfJob]:
    """Return the lines that become jobs, in the order of these jobs."""
    usable = [job for job in log.jobs if _has_run(job) and _processors(job) > 0]
    return sorted(usable, key=lambda job: (job.submit_s, job.number))


def _has_run(job: SwfJob) -> bool:
    if job.status in PARTIAL:
        return False
    # A cancelled job with no run time never started. Another one ended within a second.
    return job.run_s > 0 or (job.run_s == 0 and job.status != CANCELLED)


def _queue_of(job: SwfJob, log: SwfLog, queues: Collection[str]) -> str:
    """Return the queue that the log names, if it is one of ``queues``."""
    for name in (log.queues.get(job.queue, ""), f"queue{job.queue}", str(job.queue)):
        if name in queues:
            return name
    return DEFAULT_QUEUE


def _processors(job: SwfJob) -> int:
    return job.asked_processors if job.asked_processors > 0 else job.processors


def from_jobs(jobs: Iterable[SimulatedJob], header: Mapping[str, str]) -> SwfLog:
    """Return simulator jobs as a log, without what a schedule decides (the wait)."""
    jobs = list(jobs)
    users, queues = _Numbers("user"), _Numbers("queue")
    found = tuple(
        SwfJob(
            number=job.number,
            submit_s=job.submit_s,
            run_s=job.runs_s,
            processors=_cores(job.cpu_m),
            asked_processors=_cores(job.cpu_m),
            asked_s=int(job.request.duration_s) or UNKNOWN,
            status=COMPLETED,
            user=users.of(job.user),
            queue=UNKNOWN if job.queue == DEFAULT_QUEUE else queues.of(job.queue),
        )
        for job in jobs
    )
    return SwfLog(dict(header), found, queues.names)


def from_day(day: RecordedDay) -> SwfLog:
    """Return a recorded time as a log, with its waits. Users are numbers: a log has no names.

    Jobs that have not ended are left out, and so is work that was submitted before the begin.
    """
    users, queues = _Numbers("user"), _Numbers("queue")
    measured = [one for one in day.jobs if day.is_measured(one) and one.ended_s is not None]
    measured.sort(key=lambda one: (one.submitted_s, one.jobid))
    cores = sum(node.capacity.get(CPU, 0) for node in day.nodes) // 1000
    header = {
        "Version": "2.2",
        "UnixStartTime": str(day.since_s),
        "MaxJobs": str(len(measured)),
        "MaxNodes": str(len(day.nodes)),
        "MaxProcs": str(cores),
    }
    return SwfLog(
        header,
        tuple(
            SwfJob(
                number=number,
                submit_s=one.submitted_s - day.since_s,
                wait_s=(one.started_s or 0) - one.submitted_s,
                run_s=(one.ended_s or 0) - (one.started_s or 0),
                processors=_cores(one.cpu_m),
                asked_processors=_cores(total(one.request, CPU)),
                asked_s=int(one.request.duration_s) or UNKNOWN,
                status=COMPLETED,
                user=users.of(one.user),
                queue=queues.of(one.queue),
            )
            for number, one in enumerate(measured, 1)
        ),
        queues.names,
    )


def _cores(cpu_m: int) -> int:
    """Return whole cores, rounded up: a log has no parts of processors."""
    return max(1, -(-cpu_m // 1000))


class _Numbers:
    """Numbers for names. ``user7`` keeps its number, others get the next free one."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._by_name: dict[str, int] = {}

    def of(self, name: str) -> int:
        if not name:
            return UNKNOWN
        if name not in self._by_name:
            digits = name.removeprefix(self._word)
            is_numbered = digits != name and digits.isascii() and digits.isdigit()
            taken = set(self._by_name.values())
            number = int(digits) if is_numbered and len(digits) < 10 else len(taken) + 1
            while number in taken:
                number += 1
            self._by_name[name] = number
        return self._by_name[name]

    @property
    def names(self) -> dict[int, str]:
        return {number: name for name, number in self._by_name.items()}
