"""Show on a terminal which benchmark is under way, and for how long.

Each benchmark is run in it. Its table goes to standard output as ever.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def under_way(what: str) -> Iterator[None]:
    """Show ``what`` and the elapsed time, if standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    # A table that goes into a file must not go to the terminal instead.
    is_shown = sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=is_shown) as progress:
        progress.add_task(what, total=None)
        yield
