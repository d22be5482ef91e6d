"""The table of ``docs/user/engines.md``, from the results of the suite."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from tests.engines.catalogue import ENGINES, ROOT, Engine

PAGE = ROOT / "docs" / "user" / "engines.md"
FOUND = ROOT / "dist" / "engines.json"
"""The results of all runs. Delete it to begin anew."""
BEGIN, END = "<!-- written by make test-engines -->", "<!-- end of the table -->"
ASKED = "FLUXQUEUE_ENGINES_TABLE"
"""With this variable the suite writes the table."""
STEPS = ("waits", "completes", "logs", "is cancelled", "is requeued", "loses its node")

Results = Mapping[str, Mapping[str, str]]
"""By the name of the engine and the step: ``yes``, ``no``, or ``–`` if it has none."""


def is_asked() -> bool:
    """Tell whether the table must be written."""
    return bool(os.environ.get(ASKED))


def remembered(results: Results, file: Path = FOUND) -> dict[str, dict[str, str]]:
    """Add results to those of earlier runs, so that engines can be run one by one."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    names = {*before, *results}
    found = {name: {**before.get(name, {}), **results.get(name, {})} for name in sorted(names)}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def rows(results: Results) -> list[str]:
    """Return the table. An engine with a step that did not run is left out."""
    heads = (
        "Engine",
        "Version",
        "Creates",
        *STEPS,
        "Needed setting",
        "Limits that count the queue",
    )
    found = [_row(heads), _row(("---",) * len(heads))]
    for engine in ENGINES:
        said = results.get(engine.name, {})
        if all(step in said for step in STEPS):
            found.append(_row(_cells(engine, said)))
    return found


def _cells(engine: Engine, said: Mapping[str, str]) -> tuple[str, ...]:
    steps = (said[step] for step in STEPS)
    setting = engine.setting or "–"
    return (engine.name, engine.version, engine.creates, *steps, setting, engine.limit)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def write(results: Results, page: Path = PAGE) -> None:
    """Replace the table of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    table = "\n".join(rows(results))
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
