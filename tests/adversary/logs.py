"""What the parts of a world have logged since a moment, and the tracebacks in it."""

from __future__ import annotations

import re

from tests.support.e2e.world import World

_TRACEBACK = re.compile(
    r"Traceback \(most recent call last\).*?(?=^\d\d:\d\d:\d\d |\Z)", re.M | re.S
)


class Logs:
    """Made at the beginning of an attack. What was logged before does not count."""

    def __init__(self, world: World) -> None:
        self._files = {part.log: part.log.stat().st_size for part in world.stack.parts.values()}

    def text(self) -> str:
        """What was logged since then."""
        found = []
        for file, size in self._files.items():
            with file.open("rb") as open_file:
                open_file.seek(size)
                found.append(open_file.read().decode(errors="replace"))
        return "\n".join(found)

    def tracebacks(self) -> str:
        """Tracebacks of any part, joined."""
        return "\n".join(found.group() for found in _TRACEBACK.finditer(self.text()))
