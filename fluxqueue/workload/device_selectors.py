"""CEL selectors of DeviceClasses: whether a published device meets one.

``workload.devices`` calls it for the classes that administrators make. A selector that cannot be
evaluated here says why, and then no device is left out because of it. It must not evaluate
selectors of ResourceClaims: their authors are tenants, and CEL may cost much time. Pure.

Source: k8s.io/dynamic-resource-allocation/cel (1.36). The library is the Rust implementation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cel
import orjson

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.quantity import parse_quantity

MAX_LENGTH = 4000
"""Characters. A longer expression could exceed the stack of the evaluation."""

MAX_LOOPS = 2
"""The API server limits the cost of an expression, which grows most with nested loops."""

_LOOP = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(")
_DOMAIN = re.compile(r"""device\.(attributes|capacity)\[("[^"\\]*"|'[^'\\]*')\]""")
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_INT64 = 2**63

_KNOWN_MAX = 100_000
"""So many answers are kept. Many devices are alike, and each change of a claim asks again."""


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """One expression. ``doubt`` says why it cannot be evaluated, empty if it can be."""

    expression: str
    program: cel.Program | None = None
    domains: tuple[tuple[str, str], ...] = ()
    doubt: str = ""

    def meets(self, facts: bytes) -> bool | None:
        """Return whether a device meets it, None if that cannot be said.

        A device without an attribute that the expression needs does not meet it.

        Parameters
        ----------
        facts
            The variable ``device`` as JSON: ``driver``, ``attributes`` and ``capacity`` by domain.
        """
        return None if self.program is None else _meets(self.expression, facts)


@lru_cache(maxsize=_KNOWN_MAX)
def _meets(expression: str, facts: bytes) -> bool | None:
    selector, known = read_selector(expression), orjson.loads(facts)
    assert selector.program is not None, "the caller has looked"
    # For Kubernetes, a domain without attributes is an empty map.
    for part, domain in selector.domains:
        known[part].setdefault(domain, {})
    try:
        found = selector.program.execute(cel.Context({"device": known}, _FUNCTIONS))
    except KeyError:
        return False
    except Exception:  # noqa: BLE001  each fault of an evaluation has a class of its own
        return None
    return found if isinstance(found, bool) else None


@lru_cache(maxsize=1000)
def read_selector(expression: str) -> DeviceSelector:
    """Read one expression. What cannot be read is in doubt."""
    short = " ".join(expression.split())[:200]
    if len(expression) > MAX_LENGTH or len(_LOOP.findall(expression)) > MAX_LOOPS:
        return DeviceSelector(expression, doubt=f"its selector is too costly: {short}")
    try:
        program = cel.compile(expression)
    except Exception:  # noqa: BLE001  the parser has several classes of errors
        return DeviceSelector(expression, doubt=f"its selector cannot be counted: {short}")
    domains = {(one[1], one[2][1:-1]) for one in _DOMAIN.finditer(expression)}
    return DeviceSelector(expression, program, tuple(sorted(domains)))


def by_domain(named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return values of qualified names, as in ``gpu.example.com/model``, by domain and name."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in named.items():
        domain, _, short = name.rpartition("/")
        found.setdefault(domain, {})[short] = value
    return found


def as_amount(text: str) -> int | None:
    """Return a quantity in thousandths, as selectors compare it. None if no number can hold it."""
    try:
        amount = parse_quantity(text, where="quantity") * 1000
    except InvalidInput:
        return None
    return int(amount) if abs(amount) < _INT64 else None


# --- what Kubernetes adds to CEL ------------------------------------------------------------------
#
# A quantity is a number of thousandths here, and a version is its text: the library passes plain
# values only. A function that raises makes the selector undecided for that device.


def _version(text: str) -> tuple[Any, ...]:
    found = _VERSION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no version")
    before = tuple((0, int(one), "") if one.isdigit() else (1, 0, one) for one in _parts(found[4]))
    # A version before the release comes before the release.
    return (*(int(one) for one in found.group(1, 2, 3)), not before, before)


def _parts(text: str | None) -> list[str]:
    return text.split(".") if text else []


def _compare(a: Any, b: Any) -> int:
    if isinstance(a, str) and isinstance(b, str):
        a, b = _version(a), _version(b)
    if type(a) is not type(b):
        raise TypeError("only quantities and versions are compared, each with its own kind")
    return int(a > b) - int(a < b)


def _amount(text: str) -> int:
    amount = as_amount(text)
    if amount is None:
        raise ValueError(f"{text!r} is no quantity")
    return amount


def _semver(text: str) -> str:
    _version(text)
    return text


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "quantity": _amount,
    "isQuantity": lambda text: as_amount(text) is not None,
    "semver": _semver,
    "isSemver": lambda text: _VERSION.fullmatch(text) is not None,
    "compareTo": _compare,
    "isGreaterThan": lambda a, b: _compare(a, b) > 0,
    "isLessThan": lambda a, b: _compare(a, b) < 0,
    "major": lambda text: _version(text)[0],
    "minor": lambda text: _version(text)[1],
    "patch": lambda text: _version(text)[2],
    "asInteger": lambda amount: amount // 1000,
    "asApproximateFloat": lambda amount: amount / 1000,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
}
