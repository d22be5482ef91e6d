"""Recorded answers of a real sbatch beside ours: equal, told, refused, or different in silence.

``make slurm-cases`` prints the table, and a test reads it. The answers are facts of Slurm 22.05.8
on eight nodes, recorded while all of them were busy (``record_slurm``). A line of a file leaves out
defaults. ``public_style.jsonl`` has scripts of many batch systems. Slurm reads few lines of the
others, and that one had no GPUs: ``manual`` has what the manual of the script's system says.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from fluxqueue.client.batch.job_of_script import manifest_of
from fluxqueue.client.batch.script import read_script, with_variables
from fluxqueue.client.batch.script_notes import notes_on
from fluxqueue.client.batch.script_request import ScriptRequest, translate
from fluxqueue.client.batch.site_names import GPU, SiteNames
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.workload.quantity import parse_quantity

_CASES = Path(__file__).parents[1] / "unit" / "cli"
CASES = _CASES / "slurm_cases.jsonl", _CASES / "public_style.jsonl"
DEFAULTS = {
    "NumNodes": "1", "NumTasks": "1", "CPUs/Task": "1", "TimeLimit": "UNLIMITED",
    "Partition": "main", "Dependency": "(null)", "Reason": "Resources", "Requeue": "1",
    "Nice": "0", "ReqNodeList": "(null)", "ExcNodeList": "(null)", "Features": "(null)",
    "OverSubscribe": "OK", "JobName": "", "MinMemoryNode": "0",
}  # fmt: skip
SITE = SiteNames(constraints={name: {f"feature/{name}": "yes"} for name in ("ib", "a100")})
Facts = Mapping[str, str]
_HELD = r"@(ARR|A|B|R|DONE|FAILED|CANCELLED)\b"
"""Jobs that the recorded dependencies name."""


class Answer(StrEnum):
    """What we do with a script that Slurm was asked about, too."""

    EQUAL = "equal"
    TOLD = "told"
    REFUSED = "refused with reason"
    BOTH_REFUSE = "both refuse"
    GENEROUS = "accepted only here"
    SILENT = "different in silence"


@dataclass(frozen=True, slots=True)
class Case:
    """A script, options and variables, and the job that Slurm made of them, None if it refused."""

    group: str
    name: str
    script: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    at: datetime
    job: Facts | None


def recorded() -> list[Case]:
    """Return the recorded cases."""
    lines = (line for path in CASES for line in path.read_text(encoding="utf-8").splitlines())
    return [
        Case(
            *(row["group"], row["name"], row["script"], tuple(row.get("argv", ()))),
            row.get("env", {}),
            datetime.fromisoformat(row["at"]),
            _job(row["job"], row.get("manual")),
        )
        for row in map(json.loads, lines)
    ]


def _job(job: Facts | None, manual: Facts | None) -> Facts | None:
    return None if job is None and not manual else DEFAULTS | (job or {}) | (manual or {})


def answer(case: Case) -> tuple[Answer, str]:
    """Return what we do with a case, and in which words, or in what it differs."""
    try:
        request = read(case)
    except InvalidInput as error:
        return (Answer.REFUSED if case.job else Answer.BOTH_REFUSE), str(error)
    if case.job is None:
        return Answer.GENEROUS, ""
    if case.name in _SAFER:
        return Answer.TOLD, _SAFER[case.name]
    found = [
        f"{name}: Slurm {theirs}, here {ours}"
        for name, (theirs, ours) in _compared(request, case).items()
        if theirs != ours
    ]
    if not found:
        return Answer.EQUAL, ""
    words = "; ".join((*notes_on(request), *request.ignored))
    untold = [one for one in found if not any(key in words for key in _TOLD[one.split(":")[0]])]
    return (Answer.SILENT if untold else Answer.TOLD), "; ".join(untold or found)


def read(case: Case) -> ScriptRequest:
    """Read a case as ``submit`` does. Raises InvalidInput."""
    text = re.sub(_HELD, lambda one: f"job-{one[1].lower()}", case.script)
    if case.argv:
        head, _, rest = text.partition("\n")
        lines = rest.split("\n")
        at = next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
        lines.insert(at, f"#SBATCH {shlex.join(case.argv)}")
        text = "\n".join((head, *lines))
    script = with_variables(read_script(text, "job.sh"), case.env)
    request = translate(script, SITE, case.at)
    manifest_of(replace(request, name=request.name or "x", image="x"))
    return request


_SAFER = {
    "afterok:999999": "Slurm starts it at once. Here its reason names the job that is missing"
}
_TOLD: dict[str, tuple[str, ...]] = {
    "tasks": (),
    "nodes": ("in one pod", "exactly the nodes", "from one node"),
    "cpus per task": (),
    "seconds": (),
    "memory": (),
    "gpus": (),
    "array": (),
    "at once": (),
    "dependency": ("aftercorr",),
    "begin": (),
    "requeue": ("a lost node",),
    "held": (),
    "nice": (),
    "nodelist": (),
    "exclude": (),
    "features": ("--prefer",),
    "whole nodes": (),
    "name": (),
    "partition": (),
    "comment": (),
}
"""The notes that tell a difference."""


def _compared(request: ScriptRequest, case: Case) -> dict[str, tuple[Any, Any]]:
    """Return pairs of Slurm's and our value."""
    job = case.job or {}
    layout = request.layout
    said = request.script.said
    nodes = int(job["NumNodes"].split("-")[0])
    asked = said["nodes"][-1].value if "nodes" in said else ""
    is_range = "-" in asked or "," in asked
    found: dict[str, tuple[Any, Any]] = {}
    if job["NumTasks"] != "N/A" and not (is_range and "ntasks" not in said):
        found["tasks"] = int(job["NumTasks"]), layout.tasks
    if layout.nodes and not is_range and nodes <= 8:
        found["nodes"] = nodes, layout.nodes
    if job["CPUs/Task"] != "N/A" and "cpus-per-gpu" not in said:
        each = said["cpus-per-task"][-1].value if "cpus-per-task" in said else "1"
        found["cpus per task"] = int(job["CPUs/Task"]), int(each)
    if job["Partition"] == "main" or "time" in said:
        found["seconds"] = _seconds(job["TimeLimit"]), _ours_s(request)
    found |= _amounts(request, job)
    if "ArrayTaskId" in job:
        indexes, _, most = job["ArrayTaskId"].partition("%")
        found["array"] = _indexes(indexes), request.array
        found["at once"] = int(most or 0), request.array_limit
    found["dependency"] = _dependency(job), _ours(request)
    if job["Reason"] == "BeginTime":
        found["begin"] = datetime.fromisoformat(job["StartTime"]), _begin(request, case.at)
    found["requeue"] = job["Requeue"] == "1", request.restarts_on_loss
    found["held"] = job["Reason"] == "JobHeldUser", request.is_held
    if job["Nice"] != "0":
        found["nice"] = -int(job["Nice"]), int(request.priority or 0)
    for name, key, operator in (
        ("nodelist", "ReqNodeList", "In"),
        ("exclude", "ExcNodeList", "NotIn"),
    ):
        theirs = set() if job[key] == "(null)" else set(expand(job[key]))
        found[name] = (
            theirs,
            {
                host
                for term in request.nodes_allowed
                for one in term
                if one.key == "kubernetes.io/hostname" and one.operator == operator
                for host in one.values
            },
        )
    features = set(re.findall(r"[a-z]\w+", job["Features"].replace("(null)", "")))
    found["features"] = (
        features,
        {
            one.key.removeprefix("feature/")
            for term in request.nodes_allowed
            for one in term
            if one.key.startswith("feature/")
        },
    )
    found["whole nodes"] = job["OverSubscribe"] == "NO", request.is_exclusive
    if job["JobName"]:
        found["name"] = job["JobName"], request.name
    found["partition"] = job["Partition"].replace("main", ""), request.queue.replace("main", "")
    found["comment"] = job.get("Comment", ""), request.comment
    return found


def _amounts(request: ScriptRequest, job: Facts) -> dict[str, tuple[Any, Any]]:
    """Return the memory of the job in MiB, and its GPUs, where the script asks for them."""
    found: dict[str, tuple[Any, Any]] = {}
    pods, said = request.layout.pods, request.script.said
    if said.keys() & {"mem", "mem-per-cpu", "mem-per-gpu"} and not request.takes_node_memory:
        of_pod = parse_quantity(request.memory, where="memory") / 2**20 if request.memory else 0
        if "mem" in said:
            # Of the fullest node. Shares of pods are rounded up.
            theirs, most = _mebibytes(job["MinMemoryNode"]), request.layout.most_per_node or 1
            ours = float(of_pod * most)
            found["memory"] = theirs, theirs if 0 <= ours - theirs < most else ours
        elif "mem-per-cpu" in said and job.get("MinMemoryCPU", "0") != "0":
            cpus = float(parse_quantity(request.cpus, where="cpu"))
            found["memory"] = _mebibytes(job["MinMemoryCPU"]) * cpus, float(of_pod)
    for key, each in (
        ("TresPerJob", 1),
        ("TresPerNode", max(1, request.layout.nodes)),
        ("TresPerTask", request.layout.tasks),
    ):
        if key in job:
            theirs = [one for one in job[key].split(",") if one.startswith("gres:gpu")]
            number = theirs[-1].rpartition(":")[2]
            count = int(number) if number.isdigit() else 1
            found["gpus"] = count * each, request.devices.get(GPU, 0) * pods
    return found


def _mebibytes(text: str) -> float:
    scale = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}.get(text[-1])
    return float(text[:-1]) * scale if scale else float(text)


def _seconds(text: str) -> int:
    if text == "UNLIMITED":
        return 0
    days, _, clock = text.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    return int(days or 0) * 86_400 + hours * 3600 + minutes * 60 + seconds


def _ours_s(request: ScriptRequest) -> int:
    """Return until when the job may run: its duration, and the grace that was taken from it."""
    seconds = int(request.duration.removesuffix("s") or 0)
    return -(-(seconds + request.grace_s) // 60) * 60 if seconds else 0


def _indexes(text: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def _dependency(job: Facts) -> set[str]:
    """Return what has not happened yet, in our words. That of an ended job is no longer there."""
    text = re.sub(_HELD, lambda one: f"job-{one[1].lower()}", job["Dependency"].replace("_*", ""))
    return set() if text == "(null)" else set(re.sub(r"\(\w+\)", "", text).split(","))


def _ours(request: ScriptRequest) -> set[str]:
    """Return our dependencies, one for each job.

    Those on ended jobs, and singletons without others of their name, are gone in Slurm's answer.
    """
    found = set()
    for word in filter(None, request.depends_on.split(",")):
        kind, *jobs = word.split(":")
        found |= {f"{kind}:{job}" for job in jobs if job and not _is_over(kind, job)}
    return found


def _is_over(kind: str, job: str) -> bool:
    ended = {"job-done", "job-failed", "job-cancelled"}
    kept = {("afterok", "job-failed"), ("afterok", "job-cancelled")}
    return job in ended and (kind, job) not in kept


def _begin(request: ScriptRequest, at: datetime) -> datetime | None:
    if found := re.fullmatch(r"\+(\d+)s", request.begin):
        return at + timedelta(seconds=int(found[1]))
    return datetime.fromisoformat(request.begin).replace(tzinfo=None) if request.begin else None


def main() -> None:
    """Print how many cases have which answer, and the words of those that differ."""
    counts: Counter[tuple[str, Answer]] = Counter()
    is_long = "-v" in sys.argv
    for case in recorded():
        found, words = answer(case)
        counts[case.group, found] += 1
        if found is Answer.SILENT or is_long:
            print(f"{found}: {case.group} {case.name}: {words}")
    groups = dict.fromkeys(group for group, _ in counts)
    print(" | ".join(["group", *Answer]))
    for group in groups:
        print(" | ".join([group, *(str(counts[group, one]) for one in Answer)]))
    print(" | ".join(["all", *(str(sum(counts[g, one] for g in groups)) for one in Answer)]))


if __name__ == "__main__":
    main()
