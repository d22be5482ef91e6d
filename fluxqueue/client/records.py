"""Answers as plain data: lists of dicts that notebooks show and pandas takes.

Pure. ``async_client`` and ``handles`` make them.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fluxqueue.client.fluxjob_lists import read_line
from fluxqueue.errors import InvalidInput
from fluxqueue.workload.objects import Object

if TYPE_CHECKING:
    import pandas

Record = dict[str, Any]
SHOWN_MAX = 200
"""Rows that a notebook shows."""
_TIMES = ("submitted", "started", "expected", "ended")


class Records(list[Record]):
    """A list of dicts with equal keys."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return a DataFrame. Nested values become columns such as ``resources.cpu.free``.

        Raises
        ------
        InvalidInput
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise InvalidInput(
                "is not installed", where="pandas", hint="pip install pandas"
            ) from None
        return pandas.json_normalize(list(self))

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        columns = list(self[0]) if self else []
        rows = [[_cell(one.get(key)) for key in columns] for one in self[:SHOWN_MAX]]
        more = len(self) - SHOWN_MAX
        note = f"<p>and {more} more</p>" if more > 0 else ""
        return html_table(columns, rows) + note


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table. All texts are escaped: names and reasons are those of users."""
    head = "".join(f"<th>{html.escape(one)}</th>" for one in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(timespec="seconds")
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def job_record(fluxjob: Object) -> Record:
    """Return what a line of ``fluxqueue jobs`` shows. Times are datetimes in UTC."""
    found = asdict(read_line(fluxjob))
    for key in _TIMES:
        found[key] = at(found[key])
    return found


def queue_record(queue: Mapping[str, Any]) -> Record:
    """Return what a line of ``fluxqueue queues`` shows."""
    spec, status = queue.get("spec") or {}, queue.get("status") or {}
    counts = ("pending", "running", "held", "unsatisfiable")
    return {
        "name": queue["metadata"]["name"],
        "policy": spec.get("policy", ""),
        "enabled": spec.get("enabled", True),
        "started": spec.get("started", True),
        "priority": spec.get("priority", 0),
        **{key: status.get(key, 0) for key in counts},
        "default_duration": spec.get("defaultDuration", ""),
        "weight": spec.get("weight", 1),
    }


def at(epoch_s: int | None) -> datetime | None:
    """Return a time with its zone, or None."""
    return None if epoch_s is None else datetime.fromtimestamp(epoch_s, UTC)
