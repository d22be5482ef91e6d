"""Write the table of columns with several writers into docs/developer/concurrency.md.

    python docs/writers.py

It reads every statement that changes ``fluxjobs`` (``fluxqueue/db/queries``), and the steps of its
triggers. A column that several files write needs a reason here. tests/unit/test_writers.py
makes the table again and compares.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from fluxqueue.db import tables
from fluxqueue.db.queries import read_statements

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "developer" / "concurrency.md"
START, END = "<!-- written by docs/writers.py -->\n", "<!-- end of the table -->"

ALL_OF_IT = {"rebuild.sql"}
"""It makes rows from the cluster, so it may write every column."""

REASONS = {
    "begin_at": "The begin time of the author, or the one that a user has set instead.",
    "blocked_by": "The trigger notes that dependencies were never judged. The verdict replaces it.",
    "blocked_reason": "as `blocked_by`",
    "duration_s": "An observation follows the limit of a run. The requeue adopts a newer one.",
    "expected_start": "The plan sets it. Every way out of the queue clears it.",
    "held_by": "Each holder writes its own name, and removes no other one (`fluxjob/holders.py`).",
    "is_deleting": "A deletion is seen, or ordered by a user or a queue.",
    "is_placed": "as `pinned_to`",
    "is_started": "An observation or a look finds that all pods have run. A requeue clears it.",
    "is_examined": "A cycle sets it. Every change that needs another examination clears it.",
    "lacking": "The end of a run clears it. Otherwise it follows from the pods.",
    "observed": "An observation writes all facts. A request that comes too late for the present "
    "run is one, and the requeue adopts it.",
    "pinned_to": "A release writes the node before any observation shows it.",
    "place": "An observation draws a new one for a larger request, the trigger after a hold.",
    "position": "The plan and the forecast set it. The trigger clears it outside the queue.",
    "priority_parts": "Two modules ask for a new computation. Only the trigger computes it.",
    "published": "A status update writes what it shows, an observation the version of a new "
    "FluxJob object, and a user's change of the spec its generation.",
    "quarantined_by": "A cycle sets it. A changed request clears it.",
    "queue": "The queue of the author, or the queue that a user has set instead.",
    "reason": "The reason belongs to the state, and is written with it.",
    "reconcile_at": "A change of slots or pods asks for a look. The look clears it.",
    "release_at": "Every change that the object must follow asks for it. The release clears it.",
    "released_generation": "The release or the first look after it writes it. A requeue clears it.",
    "size": "as `duration_s`",
    "request": "as `duration_s`",
    "start": "Each look writes what keeps the pods from running, and the worker adds the words of "
    "the Job controller, or why a PodGroup cannot be made. A start that failed counts a try. A "
    "start, a changed request, a requeue and a release by a user clear it.",
    "started_at": "The first pod that runs sets it. A requeue clears it.",
    "state": "All changes follow `fluxjob/lifecycle.py` or `fluxjob/follow.py`. The triggers "
    "only turn an incomplete group into Gathering, and block what waits for others.",
    "status_due_at": "Each change that users see sets it, by a trigger. A status update clears it.",
    "troubles": "Each pending action writes its own failure. The trigger drops what is no longer "
    "pending.",
    "vacate_by": "The author, an operator, a preemptor, an overrun or a lost node ends the run. "
    "The requeue clears it.",
    "version": "The trigger counts changes that users see. A notice counts as one.",
    "wait_reason": "as `position`",
}
"""Why a column has several writers."""

COLUMNS = {column.name for column in tables.fluxjobs.columns}

_UPDATE = re.compile(r"\bUPDATE fluxjobs\b(?: \w+)?\s+SET\b(.*)", re.DOTALL)
_END = re.compile(r"\b(?:FROM|WHERE|RETURNING)\b")
_STEP = re.compile(r"\bnew_row\.(\w+) :=")


def writers() -> dict[str, set[str]]:
    """Return the modules and SQL files that write each column of ``fluxjobs``."""
    found: dict[str, set[str]] = defaultdict(set)
    base = ROOT / "fluxqueue" / "db"
    for path in sorted((base / "queries").glob("*.sql")):
        for _, text in read_statements(path.read_text(encoding="utf-8"), path.name):
            for column in _assigned(text):
                found[column].add(path.name)
    for path in sorted((base / "sql").glob("*.sql")):
        for column in _STEP.findall(path.read_text(encoding="utf-8")):
            found[column].add(path.name)
    return {column: names for column, names in found.items() if column in COLUMNS}


def _assigned(text: str) -> Iterator[str]:
    """Yield the columns that an UPDATE assigns, at no depth of parentheses or of CASE."""
    found = _UPDATE.search(text)
    if found is None:
        return
    depth, part = 0, ""
    for word in re.findall(r"\w+|[^\w\s]|\s+", f"{found[1]},"):
        if depth == 0 and _END.fullmatch(word):
            break
        depth += word in {"(", "CASE"}
        depth -= word in {")", "END"}
        if word == "," and depth == 0:
            yield part.partition("=")[0].strip()
            part = ""
        else:
            part += word
    yield part.partition("=")[0].strip()


def several() -> dict[str, set[str]]:
    """Return the columns with more than one writer, rebuild and repair aside."""
    found = {column: names - ALL_OF_IT for column, names in writers().items()}
    return {column: names for column, names in sorted(found.items()) if len(names) > 1}


def table() -> str:
    """Return the table. Raises KeyError for a column without a reason."""
    lines = ["| Column | Written by | Reason |\n", "|---|---|---|\n"]
    for column, names in several().items():
        files = ", ".join(f"`{name}`" for name in sorted(names))
        lines.append(f"| `{column}` | {files} | {REASONS[column]} |\n")
    return "".join(lines)


if __name__ == "__main__":
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(before + START + table() + END + rest.split(END)[1], encoding="utf-8")
