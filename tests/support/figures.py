"""Figures that tests write down for ``make adversary``: lines of JSON in a file that it names."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "FLUXQUEUE_ADVERSARY_FIGURES"


def write_down(figure: str, **values: Any) -> None:
    """Append one line, if figures are asked for."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a") as file:
            file.write(json.dumps({"figure": figure} | values) + "\n")


def read_all(path: Path) -> list[dict[str, Any]]:
    """Return all lines that were written down."""
    return [json.loads(line) for line in path.read_text().splitlines()]
