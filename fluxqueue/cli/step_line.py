"""The step of a long command that is under way, in the last line of a terminal.

``up`` and ``db upgrade`` use it. Programs that read the output get nothing of it.
"""

from __future__ import annotations

from typing import Self


class StepLine:
    """The line of a command, such as ``starting: webhook``. ``with`` removes it at the end.

    Where standard error is no terminal, it shows nothing.
    """

    def __init__(self, doing: str) -> None:
        from rich.console import Console

        console = Console(stderr=True)
        self._doing = doing
        self._status = console.status("") if console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, step: str) -> None:
        """Show that a step begins."""
        if self._status is not None:
            self._status.update(f"{self._doing}: {step}")
