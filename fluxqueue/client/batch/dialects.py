"""The dialects of batch scripts, and how options of PBS and LSF become those of sbatch.

``script`` reads lines by these tables, and docs/reference_pages.py prints them. Sources: qsub(1)
and pbs_resources(7) of PBS Pro and Torque, bsub(1) of LSF. What has no sure meaning is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from fluxqueue.client.batch.directive_values import in_mebibytes
from fluxqueue.client.batch.directives import FLUX, OWN, SLURM, Argument, Directive, Fate
from fluxqueue.errors import InvalidInput

Pairs = Iterator[tuple[str, str]]
Reader = Callable[[str, str], Pairs]

BEGINNINGS = {
    "slurm": re.compile(r"^#SBATCH(?=[\s-]|$)(?P<words>.*)$"),
    "flux": re.compile(r"^\s*(?:#|//)\W*(?:flux|FLUX):(?P<words>.*)$"),
    "pbs": re.compile(r"^#PBS(?=\s)(?P<words>.*)$"),
    "lsf": re.compile(r"^#BSUB(?=\s)(?P<words>.*)$"),
}
"""How a line with directives begins. Any marks may stand before ``flux:`` (Flux RFC 36)."""
UNKNOWN = {
    "Grid Engine": re.compile(r"^#\$\s*-"),
    "Cobalt": re.compile(r"^#COBALT\s"),
    "OAR": re.compile(r"^#OAR\s"),
    "PJM": re.compile(r"^#PJM\s"),
    "Moab": re.compile(r"^#MSUB\s"),
    "LoadLeveler": re.compile(r"^#\s*@\s*\w+\s*(?:=|$)"),
    "NQSV": re.compile(r"^#(?:NQSV?|QSUB)\s"),
}
"""The same of systems whose scripts are refused."""

_PBS_MEMORY = {"b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40}
_LSF_MEMORY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_FILES = "mail, files or the shell"
_WRITE_SLURM = "write these lines as #SBATCH lines"


def _refusal(what: str, where: str, value: str, hint: str) -> InvalidInput:
    return InvalidInput(f"{what} cannot be kept", where=where, value=value, hint=hint)


def _memory(text: str, units: dict[str, int], default: str, where: str) -> str:
    """Return an amount as sbatch takes it, in MiB."""
    found = re.fullmatch(r"(\d{1,15})([a-z]*)", text.lower())
    unit = units.get((found[2] if found else "?") or default)
    if found is None or unit is None:
        raise InvalidInput(
            f"{text!r} is not an amount of memory", where=where, value=text,
            hint="a number with one of " + ", ".join(units),
        )  # fmt: skip
    return in_mebibytes(-(-int(found[1]) * unit // 2**20))


# --- PBS ----------------------------------------------------------------------------------------


def _pbs_resources(text: str, where: str) -> Pairs:
    """Read ``-l``: nodes=2:ppn=4, select=2:ncpus=8:mpiprocs=4, walltime=1:00:00, and others."""
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name in {"nodes", "select"}:
            yield from _pbs_nodes(name, value, where)
        elif name == "walltime":
            yield "time", f"{value}s" if value.isdigit() else value
        elif name in {"mem", "pmem"}:
            key = {"mem": "job-memory", "pmem": "mem-per-cpu"}[name]
            yield key, _memory(value, _PBS_MEMORY, "b", where)
        elif name in {"ncpus", "procs", "ngpus"}:
            keys = {"ncpus": "cpus-per-task", "procs": "ntasks", "ngpus": "gpus-per-node"}
            yield keys[name], value
        elif name == "place":
            yield from _pbs_place(value, where)
        elif word == "naccesspolicy=singlejob":
            yield "exclusive", ""
        else:
            raise _refusal(f"the resource {word!r}", where, text, _WRITE_SLURM)


def _pbs_nodes(kind: str, text: str, where: str) -> Pairs:
    """Read a number of nodes and what each has. A chunk of ``select`` is a node."""
    count, *words = text.split(":")
    if "+" in text or not count.isdigit():
        hint = f"{_WRITE_SLURM}, or use the annotation fluxqueue/jobspec of a Job manifest"
        raise _refusal(f"{kind}={text}", where, text, hint)
    each = dict(word.partition("=")[::2] for word in words)
    yield "nodes", count
    if kind == "nodes" and "ppn" in each:
        yield "ntasks-per-node", each.pop("ppn")
    if kind == "select":
        cpus, tasks = each.pop("ncpus", "1"), each.pop("mpiprocs", "1")
        yield "ntasks-per-node", tasks
        if not (cpus.isdigit() and tasks.isdigit() and int(tasks) and int(cpus) % int(tasks) == 0):
            what = f"{cpus} cpus for {tasks} processes"
            raise _refusal(what, where, text, "make ncpus a multiple of mpiprocs")
        yield "cpus-per-task", str(int(cpus) // int(tasks))
    for name, value in each.items():
        if name in {"gpus", "ngpus"}:
            yield "gpus-per-node", value
        elif name == "mem":
            yield "mem", _memory(value, _PBS_MEMORY, "b", where)
        elif name == "ompthreads":
            yield "env", f"OMP_NUM_THREADS={value}"
        else:
            hint = "use #SBATCH --constraint, with the site's table"
            raise _refusal(f"{name!r} of a node", where, text, hint)


def _pbs_place(text: str, where: str) -> Pairs:
    for word in text.split(":"):
        if word in {"excl", "exclhost"}:
            yield "exclusive", ""
        elif word not in {"free", "pack", "scatter", "shared"}:
            raise _refusal(f"place={word}", where, text, "use #SBATCH --within=LEVEL")


def _pbs_attributes(text: str, where: str) -> Pairs:
    """Read ``-W``: dependencies, and ``block=true``."""
    name, _, value = text.partition("=")
    if name == "depend":
        yield "dependency", re.sub(r"(?<=\d)\.[\w.-]+", "", value)
    elif text == "block=true":
        yield "wait", ""
    elif name not in {"umask", "group_list", "sandbox", "block"}:
        raise _refusal(f"-W {name}", where, text, "leave it out")


def _pbs_begin(text: str, where: str) -> Pairs:
    """Read ``-a``: [[CC]YY]MMDDhhmm[.SS], or hhmm."""
    found = re.fullmatch(r"(?:((?:\d\d)?\d\d)?(\d\d)(\d\d))?(\d\d)(\d\d)(?:\.(\d\d))?", text)
    if found is None:
        raise InvalidInput(
            "is no begin time", where=where, value=text, hint="[[CC]YY]MMDDhhmm, hhmm"
        )
    year, month, day, hour, minute, second = found.groups()
    clock = f"{hour}:{minute}:{second or '00'}"
    if month is None:
        yield "begin", clock
    elif year is None:
        yield "begin", f"{month}/{day} {clock}"
    else:
        yield "begin", f"{year if len(year) == 4 else '20' + year}-{month}-{day}T{clock}"


def _pbs_rerunnable(text: str, where: str) -> Pairs:
    if text not in {"y", "n"}:
        raise InvalidInput("is neither y nor n", where=where, value=text, hint="-r y")
    yield ("requeue" if text == "y" else "no-requeue"), ""


def _before_at(key: str) -> Reader:
    """Read a name without the server behind it."""

    def read(text: str, _: str) -> Pairs:
        yield key, text.partition("@")[0]

    return read


# --- LSF ----------------------------------------------------------------------------------------


def _lsf_requirement(text: str, where: str) -> Pairs:
    """Read ``-R``: span[hosts=1], span[ptile=4], rusage[mem=4000]."""
    rest = re.sub(r"\s", "", text)
    while rest:
        found = re.match(r"(span|rusage|affinity|select|order)\[([^]]*)\]", rest)
        section, value = found.groups() if found else ("", rest)
        name, _, amount = value.partition("=")
        if section == "span" and value == "hosts=1":
            yield "nodes", "1"
        elif section == "span" and name == "ptile":
            yield "ntasks-per-node", amount
        elif section == "rusage" and name == "mem":
            yield "mem-per-cpu", _memory(amount.lower().removesuffix("b"), _LSF_MEMORY, "m", where)
        elif section != "order":
            what = f"{section}[{value}]" if section else repr(value)
            hint = "use span[hosts=1], span[ptile=N], rusage[mem=N], or #SBATCH --constraint"
            raise _refusal(what, where, text, hint)
        rest = rest[found.end() :] if found else ""


def _lsf_time(text: str, _: str) -> Pairs:
    """Read ``-W``: [hours:]minutes, and a host that normalizes them."""
    clock = text.partition("/")[0]
    yield "time", f"{clock}:00" if ":" in clock else clock


def _lsf_name(text: str, where: str) -> Pairs:
    """Read ``-J``: a name, and the indexes of an array."""
    found = re.fullmatch(r"([^\[]*)(?:\[([^\]]+)\](%\d+)?)?", text)
    if found is None:
        raise InvalidInput("is no name of a job", where=where, value=text, hint="name, name[1-9]%3")
    if found[1]:
        yield "job-name", found[1]
    if found[2]:
        yield "array", found[2] + (found[3] or "")


def _lsf_dependency(text: str, where: str) -> Pairs:
    """Read ``-w``: done(1) && ended(name). Others, and ``||``, are refused."""
    kinds = {"done": "afterok", "ended": "afterany", "exit": "afternotok", "started": "after"}
    found = []
    for word in text.split("&&"):
        one = re.fullmatch(r"\s*(?:(\w+)\()?\"?([\w.-]+)\"?\)?\s*", word)
        kind = kinds.get((one[1] or "done") if one else "")
        if one is None or kind is None:
            hint = "done(JOB), ended(JOB), exit(JOB), started(JOB), joined by &&"
            raise _refusal(repr(word.strip()), where, text, hint)
        found.append(f"{kind}:{one[2]}")
    yield "dependency", ",".join(found)


def _lsf_gpus(text: str, where: str) -> Pairs:
    """Read ``-gpu``: num=2, and modes that GPUs of a pod have anyway."""
    for word in text.strip('"').split(":"):
        name, _, value = word.partition("=")
        if name == "num":
            yield "gpus-per-node", value
        elif word not in {
            "mode=exclusive_process",
            "mode=shared",
            "j_exclusive=yes",
            "mps=no",
            "-",
        }:
            raise _refusal(f"-gpu {word}", where, text, "use num=N")


def _lsf_begin(text: str, where: str) -> Pairs:
    """Read ``-b``: [[[year:]month:]day:]hour:minute."""
    parts = text.split(":")
    if not all(one.isdigit() for one in parts) or len(parts) not in {2, 4, 5}:
        raise InvalidInput(
            "is no begin time", where=where, value=text, hint="[[year:]month:day:]hour:minute"
        )
    hour, minute = parts[-2:]
    if len(parts) == 2:
        yield "begin", f"{hour}:{minute}"
    elif len(parts) == 4:
        yield "begin", f"{parts[0]}/{parts[1]} {hour}:{minute}"
    else:
        yield "begin", f"{parts[0]}-{parts[1]}-{parts[2]}T{int(hour):02}:{minute}"


def _lsf_slots(text: str, _: str) -> Pairs:
    """Read ``-n``: a number, or the least and the most of them."""
    yield "ntasks", text.partition(",")[0]


def _lsf_memory(text: str, where: str) -> Pairs:
    yield "mem-per-cpu", _memory(text.lower().removesuffix("b"), _LSF_MEMORY, "k", where)


# --- the tables ---------------------------------------------------------------------------------


def _means(name: str, text: str, key: str, reads: Reader | None = None) -> Directive:
    return Directive(name, Fate.TRANSLATED, text, name, key=key, reads=reads)


def _flag(name: str, text: str, key: str) -> Directive:
    return Directive(name, Fate.TRANSLATED, text, name, Argument.NONE, key)


def _ignored(names: str, argument: Argument = Argument.REQUIRED) -> list[Directive]:
    return [Directive(one, Fate.IGNORED, _FILES, one, argument) for one in names.split()]


def _refused(name: str, text: str, argument: Argument = Argument.REQUIRED) -> Directive:
    return Directive(name, Fate.REFUSED, text, name, argument)


PBS: tuple[Directive, ...] = (
    _means("l", "nodes, cpus, memory, GPUs and time", "resources", _pbs_resources),
    _means("N", "name of the Job", "job-name"),
    _means("q", "label `fluxqueue/queue`", "partition", _before_at("partition")),
    _means("A", "annotation `fluxqueue/account`", "account"),
    _means("P", "annotation `fluxqueue/account`", "account"),
    _means("p", "annotation `fluxqueue/priority`", "priority"),
    _means("J", "an array", "array"),
    _means("t", "an array", "array"),
    _means("v", "environment", "export"),
    _means("a", "annotation `fluxqueue/begin-time`", "begin", _pbs_begin),
    _means("W", "`depend=`, `block=true`", "attributes", _pbs_attributes),
    _means("r", "`y`: as `--requeue`. `n`: as `--no-requeue`", "requeue", _pbs_rerunnable),
    _means("d", "working directory", "chdir"),
    _means("w", "working directory", "chdir"),
    _flag("h", "annotation `fluxqueue/hold`", "hold"),
    *_ignored("o e j k m M S c R u"),
    *_ignored("V z f", Argument.NONE),
    _refused("I", "use fluxqueue submit --attach", Argument.NONE),
    _refused("X", "use kubectl port-forward", Argument.NONE),
    _refused("C", "begin the lines with #PBS"),
    _refused("T", "leave it out"),
    *OWN,
)  # fmt: skip
"""qsub(1) of PBS Pro and Torque."""

LSF: tuple[Directive, ...] = (
    _means("n", "number of tasks", "ntasks", _lsf_slots),
    _means("R", "`span[...]`, `rusage[mem=...]` of each task", "requirement", _lsf_requirement),
    _means("W", "annotation `fluxqueue/duration`", "time", _lsf_time),
    _means("M", "memory for each task, in KiB without a unit", "memory", _lsf_memory),
    _means("J", "name of the Job, and the indexes of an array", "job-name", _lsf_name),
    _means("q", "label `fluxqueue/queue`", "partition"),
    _means("P", "annotation `fluxqueue/account`", "account"),
    _means("w", "annotation `fluxqueue/depends-on`", "dependency", _lsf_dependency),
    _means("b", "annotation `fluxqueue/begin-time`", "begin", _lsf_begin),
    Directive("gpu", Fate.TRANSLATED, "GPUs of each node: `num=`", key="gpus", reads=_lsf_gpus),
    Directive("cwd", Fate.TRANSLATED, "working directory", key="chdir"),
    Directive("sp", Fate.TRANSLATED, "annotation `fluxqueue/priority`", key="priority"),
    _flag("x", "annotation `fluxqueue/exclusive`: whole nodes", "exclusive"),
    _flag("H", "annotation `fluxqueue/hold`", "hold"),
    _flag("K", "`submit --wait`", "wait"),
    _flag("r", "annotation `fluxqueue/on-node-loss: requeue`", "requeue"),
    Directive(
        "rn", Fate.TRANSLATED, "a lost node fails the Job", argument=Argument.NONE, key="no-requeue"
    ),
    *_ignored("o e u G L"),
    *_ignored("B N", Argument.NONE),
    *(Directive(one, Fate.IGNORED, _FILES) for one in ("oo", "eo", "env", "app")),
    _refused("I", "use fluxqueue submit --attach", Argument.NONE),
    _refused("m", "use #SBATCH --nodelist, or --constraint"),
    _refused("i", "use --image: the container image holds the files and programs"),
    _refused("a", "leave it out"),
    *(one for one in OWN if one.name != "env"),
)  # fmt: skip
"""bsub(1)."""

DIALECTS: dict[str, tuple[Directive, ...]] = {
    "slurm": SLURM, "flux": FLUX, "pbs": PBS, "lsf": LSF
}  # fmt: skip
