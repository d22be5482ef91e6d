"""What the operators compute. ``evaluating`` uses them, and ``functions`` has their types.

Pure.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from localcluster.types.cel.rights import Rights, of_request
from localcluster.types.cel.values import (
    CelError,
    Optional,
    boolean,
    check_order,
    equal,
    fitting,
    number,
)

Binary = Callable[[Any, Any], Any]


def _pair(left: Any, right: Any) -> None:
    """Check that two numbers have the same type: int and double are not added."""
    if isinstance(number(left), float) is not isinstance(number(right), float):
        raise CelError("no such overload")


def _ordered(compare: Callable[[Any, Any], bool]) -> Binary:
    def evaluate(left: Any, right: Any) -> bool:
        if type(left) is not int or type(right) is not int:
            check_order(left, right)
        return compare(left, right)

    return evaluate


def _arithmetic(compute: Binary) -> Binary:
    def evaluate(left: Any, right: Any) -> Any:
        _pair(left, right)
        return fitting(compute(left, right))

    return evaluate


def _timed(compute: Binary, left: Any, right: Any) -> Any:
    """Compute with timestamps and durations. Return NotImplemented for other values."""
    times = (datetime, timedelta)
    if not isinstance(left, times) or not isinstance(right, times):
        return NotImplemented
    try:
        return compute(left, right)
    except TypeError as error:
        raise CelError("no such overload") from error
    except OverflowError as error:
        raise CelError("timestamp overflow") from error


def _add(left: Any, right: Any) -> Any:
    if type(left) is type(right) and isinstance(left, str | bytes | list):
        return left + right
    timed = _timed(operator.add, left, right)
    return _plus(left, right) if timed is NotImplemented else timed


def _subtract(left: Any, right: Any) -> Any:
    timed = _timed(operator.sub, left, right)
    return _minus(left, right) if timed is NotImplemented else timed


_plus = _arithmetic(operator.add)
_minus = _arithmetic(operator.sub)


def _divide(left: Any, right: Any) -> Any:
    """Divide, towards zero for int. A double divided by zero is infinite or NaN."""
    _pair(left, right)
    if isinstance(left, int):
        if right == 0:
            raise CelError("division by zero")
        quotient = abs(left) // abs(right)
        return fitting(quotient if (left < 0) is (right < 0) else -quotient)
    if right == 0:
        return (
            math.nan
            if left == 0 or math.isnan(left)
            else math.copysign(math.inf, math.copysign(1, left) * math.copysign(1, right))
        )
    return left / right


def _remainder(left: Any, right: Any) -> Any:
    """Return the remainder with the sign of the dividend, for int only."""
    _pair(left, right)
    if isinstance(left, float):
        raise CelError("no such overload")
    if right == 0:
        raise CelError("modulus by zero")
    return left - right * _divide(left, right) if right != -1 else 0


def _contained(item: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return isinstance(item, str | int) and not isinstance(item, bool) and item in container
    if isinstance(container, list):
        return any(equal(item, other) for other in container)
    raise CelError("no such overload")


def index(container: Any, key: Any) -> Any:
    """Return ``container[key]``."""
    if isinstance(container, dict):
        if isinstance(key, str | int) and key in container:
            return container[key]
        raise CelError(f"no such key: {key}")
    if isinstance(container, list) and type(key) is int:
        if 0 <= key < len(container):
            return container[key]
        raise CelError(f"index out of bounds: {key}")
    raise CelError("no such overload")


def _optional_index(container: Any, key: Any) -> Any:
    if isinstance(container, Optional):
        return _optional_index(container.item[0], key) if container.item else container
    try:
        return Optional((index(container, key),))
    except CelError as error:
        if "no such overload" in str(error):
            raise
        return Optional()


def select(value: Any, name: str) -> Any:
    """Return ``value.name``."""
    if isinstance(value, dict):
        if name in value:
            return value[name]
        raise CelError(f"no such key: {name}")
    if isinstance(value, Optional):
        return Optional((select(value.item[0], name),)) if value.item else value
    if isinstance(value, Rights) and name == "requestResource":
        return of_request(value)
    raise CelError(f"no such key: {name}" if value is None else "no such overload")


def has(value: Any, name: str) -> bool:
    """Return ``has(value.name)``."""
    if isinstance(value, dict):
        return name in value
    if isinstance(value, Optional):
        return bool(value.item) and has(value.item[0], name)
    raise CelError(f"no such key: {name}" if value is None else "no such overload")


def select_optional(value: Any, name: str) -> Any:
    """Return ``value.?name``."""
    inner = value.item[0] if isinstance(value, Optional) and value.item else value
    if isinstance(inner, Optional):
        return inner
    return Optional((select(inner, name),)) if has(inner, name) else Optional()


def _negative(value: Any) -> Any:
    return fitting(-number(value))


OPERATORS: dict[str, Callable[..., Any]] = {
    "_==_": equal,
    "_!=_": lambda a, b: not equal(a, b),
    "_<_": _ordered(operator.lt),
    "_<=_": _ordered(operator.le),
    "_>_": _ordered(operator.gt),
    "_>=_": _ordered(operator.ge),
    "@in": _contained,
    "_+_": _add,
    "_-_": _subtract,
    "_*_": _arithmetic(operator.mul),
    "_/_": _divide,
    "_%_": _remainder,
    "_[_]": index,
    "_[?_]": _optional_index,
    "-_": _negative,
    "!_": lambda value: not boolean(value),
}
