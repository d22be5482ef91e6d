"""One poisoned object among good ones: steps that raise for it, each name another exception.

For tests that put a defect into one step of a reader and assert that all other objects go on, and
that the poisoned ones are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput

EXCEPTIONS: Mapping[str, Callable[[], Exception]] = {
    "poison-value": lambda: ValueError("no such value"),
    "poison-recursion": lambda: RecursionError("too deep"),
    "poison-overflow": lambda: OverflowError("too large"),
    "poison-key": lambda: KeyError("spec"),
    "poison-timeout": lambda: TimeoutError("took too long"),
    "poison-type": lambda: TypeError("not a mapping"),
    "poison-input": lambda: InvalidInput(
        "cannot be used", where="spec.x", value="y", hint="mend it"
    ),
}
"""By name of an object, what a step raises for it."""

NAMES = tuple(EXCEPTIONS)


class Poison:
    """What is poisoned now. ``mend`` ends it."""

    def __init__(self) -> None:
        self.is_on = True
        self.met: set[str] = set()

    def mend(self) -> None:
        """From now on nothing raises any more."""
        self.is_on = False

    def poisoned(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """``step``, raising where one of its arguments is of a poisoned name."""

        def raising(*given: Any, **named: Any) -> Any:
            name = _poisoned_name([*given, *named.values()]) if self.is_on else None
            if name is not None:
                self.met.add(name)
                raise EXCEPTIONS[name]()
            return step(*given, **named)

        return raising

    def put_into(self, monkeypatch: pytest.MonkeyPatch, where: Any, attribute: str) -> None:
        """Poison a function of a module, or a method of a class."""
        step = getattr(where, attribute)
        monkeypatch.setattr(where, attribute, self.poisoned(step))


def _poisoned_name(arguments: list[Any]) -> str | None:
    objects = getattr(arguments[0], "objects", {}) if arguments else {}
    told = [objects[one] for one in arguments if isinstance(one, str) and one in objects]
    for one in [*told, *arguments]:
        for name in _names_of(one):
            found = next((key for key in EXCEPTIONS if str(name).startswith(key)), None)
            if found is not None:
                return found
    return None


def _names_of(one: Any) -> list[Any]:
    if isinstance(one, str):
        return [one]
    if isinstance(one, Mapping):
        meta = one.get("metadata")
        inner = [meta.get("name")] if isinstance(meta, Mapping) else []
        return [*inner, one.get("workload_name"), one.get("name")]
    names = [getattr(one, name, None) for name in ("workload_name", "name")]
    return [name for name in names if isinstance(name, str)]
