"""Kubernetes quantities as exact integers: ``100m``, ``1.5``, ``2Gi``, ``1e3``.

Called by ``workload.pod_resources`` and ``workload.node_object``. It never uses a float: a request
that is one byte too large must be one byte too large here as well.

Source of the format: ``k8s.io/apimachinery/pkg/api/resource.Quantity``.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU

MAX_UNITS = 2**63 - 1
"""Kubernetes' maximum of every quantity, and the maximum of a database integer."""

_MAX_LENGTH = 64
_MAX_EXPONENT = 40
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_SCALES: dict[str | None, Fraction] = {None: Fraction(1)}
_SCALES.update({s: Fraction(1, 1000 ** (3 - i)) for i, s in enumerate("num")})
_SCALES.update({s: Fraction(1000 ** (i + 1)) for i, s in enumerate("kMGTPE")})
_SCALES.update({f"{s}i": Fraction(1024 ** (i + 1)) for i, s in enumerate("KMGTPE")})


def parse_quantity(value: object, *, where: str) -> Fraction:
    """Read a quantity exactly.

    Parameters: ``value`` is the value in the object (a string, or a bare number in hand-written
    YAML). ``where`` is the field's path, for the message.

    Raises
    ------
    InvalidInput
        The value is no quantity, or is negative.
    """
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    text = str(value) if is_number else value
    amount = _parse(text) if isinstance(text, str) and len(text) <= _MAX_LENGTH else None
    if amount is None:
        raise InvalidInput(
            f"{value!r} is not a quantity",
            where=where,
            value=value,
            hint="write a number with an optional unit, such as 500m, 2, 1.5 or 4Gi",
        )
    if amount < 0:
        raise InvalidInput(
            f"{value!r} is negative", where=where, value=value, hint="must be 0 or more"
        )
    return amount


@lru_cache(maxsize=4096)
def _parse(text: str) -> Fraction | None:
    """Read ``text``, or return None. Cached: a cluster has few quantities, but they repeat."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    amount = Fraction(match["sign"] + match["number"])
    if match["exponent"] is None:
        return amount * _SCALES[match["suffix"]]
    # Beyond the bound the value is capped or rounds up to one unit, whatever the exponent.
    exponent = max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(match["exponent"])))
    scale: Fraction = Fraction(10) ** exponent
    return amount * scale


def to_base_units(resource: str, value: object, *, where: str) -> int:
    """Return the quantity of ``resource`` in base units, rounded up, at most ``MAX_UNITS``.

    Base units are millicores for ``cpu``, otherwise bytes or whole units.

    Raises
    ------
    InvalidInput
        As ``parse_quantity``.
    """
    return _as_units(parse_quantity(value, where=where), 1000 if resource == CPU else 1)


@lru_cache(maxsize=4096)
def _as_units(amount: Fraction, units: int) -> int:
    """Round up to whole base units. Cached as ``_parse``: each event of a running pod uses it."""
    amount *= units
    return min(MAX_UNITS, -(-amount.numerator // amount.denominator))
