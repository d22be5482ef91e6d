"""The SQL statements of the product by name: ``Q.queue_head`` is the text of that statement.

They stand in the files ``*.sql`` beside this module, several to a file. They are read at import.
A line ``-- name: queue_head`` begins a statement. The comment behind it says what the statement
answers, and which order or locks it relies on. A line ``-- fragment: in_turn`` begins what several
statements of its file share, and ``-- include: in_turn`` at the end of a line stands for it. Only
``fluxqueue.db`` uses this module, through ``Transaction.fetch`` and its like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

FOLDER = Path(__file__).parent

_HEAD = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_INCLUDE = re.compile(r"-- include: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *--(?! include:).*\n?", re.MULTILINE)


def read_statements(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Return the names and texts of the statements of a file, without their comments.

    Raises: ``ValueError`` for a name that occurs twice, and for an unknown fragment.
    """
    fragments: dict[str, str] = {}
    pieces = _HEAD.split(text)[1:]
    for kind, name, body in zip(pieces[::3], pieces[1::3], pieces[2::3], strict=True):
        if unknown := set(_INCLUDE.findall(body)) - fragments.keys():
            raise ValueError(f"{where}: {name} includes unknown fragments: {sorted(unknown)}")
        words = _INCLUDE.sub(lambda found: fragments[found[1]], _COMMENT.sub("", body)).strip()
        if kind == "name":
            yield name, words
        elif fragments.setdefault(name, words) is not words:
            raise ValueError(f"{where}: two fragments are called {name}")


class Queries:
    """All statements as attributes."""

    def __init__(self, folder: Path) -> None:
        for file in sorted(folder.glob("*.sql")):
            for name, words in read_statements(file.read_text(encoding="utf-8"), file.name):
                if name in self.__dict__:
                    raise ValueError(f"{file.name}: another statement is called {name}")
                self.__dict__[name] = words

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> str: ...


Q = Queries(FOLDER)
