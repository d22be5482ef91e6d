"""Messages on standard error: a terminal breaks them between words, a file gets them in one line.

All commands use it for errors and notes. Answers go to standard output (``cli.user.printing``).
"""

from __future__ import annotations

import os
import sys
import textwrap

WIDTH_LEAST = 20
INDENT = "  "


def complain(message: str) -> None:
    """Print a message on standard error."""
    if sys.stderr is not None:
        print(wrapped(message, _width()), file=sys.stderr)


def wrapped(message: str, width: int, indent: str = INDENT) -> str:
    """Return ``message`` with lines of at most ``width`` characters, 0 for any length.

    Words stay whole, so that commands and addresses can be copied. Further lines begin with
    ``indent``.
    """
    if width < WIDTH_LEAST:
        return message
    lines = [
        textwrap.fill(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        for line in message.splitlines()
    ]
    return "\n".join(lines)


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # not a terminal
        return 0
