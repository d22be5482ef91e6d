"""Commands whose options are the fields of a dataclass, each annotated with an option of typer."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, get_type_hints


def with_options(options: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of ``options`` as options. It gets an instance last."""
    hints = get_type_hints(options, include_extras=True)
    own = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=hints[one.name],
        )
        for one in fields(options)
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        before = list(inspect.signature(command, eval_str=True).parameters.values())[:-1]

        @functools.wraps(command)
        def wrapped(*first: Any, **given: Any) -> None:
            command(*first, options(**given))

        untyped: Any = wrapped
        untyped.__signature__ = inspect.Signature([*before, *own])
        untyped.__annotations__ = {one.name: one.annotation for one in (*before, *own)}
        del untyped.__wrapped__
        return wrapped

    return decorate
