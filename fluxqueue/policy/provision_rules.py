"""When a queue asks for nodes that do not exist yet: ``spec.provision`` of a FluxQueue. Pure.

``queue_rules`` reads it with the other rules of a queue. ``nodepools`` decides by it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.spec_fields import as_mapping, as_texts
from fluxqueue.workload.annotations import parse_duration

PRICE = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,4})?")
"""An amount of money for an hour, in any currency: ``3.10``."""


@dataclass(frozen=True, slots=True)
class ProvisionRules:
    """When a queue asks for nodes, from ``spec.provision`` of a FluxQueue.

    ``earlier_s``: new nodes must start a job earlier by this many seconds. None: only a job that
    no present nodes can hold gets new ones. ``budget``: the most that the new nodes of the queue
    may cost for an hour at a time. ``pools``: the pools in the order in which they are tried, None
    for all.
    """

    earlier_s: int | None = None
    budget: Decimal | None = None
    pools: tuple[str, ...] | None = None


NO_RULES = ProvisionRules()


def read_provision_rules(spec: object) -> ProvisionRules:
    """Read ``spec.provision`` of a FluxQueue.

    Raises
    ------
    InvalidInput
        A field is not valid. ``where`` is its path.
    """
    found = as_mapping(spec, "spec.provision")
    earlier, budget, pools = (found.get(key) for key in ("earlierBy", "budgetPerHour", "pools"))
    where = "spec.provision"
    return ProvisionRules(
        None if earlier is None else parse_duration(str(earlier), f"{where}.earlierBy"),
        None if budget is None else parse_price(budget, f"{where}.budgetPerHour"),
        None if pools is None else as_texts(pools, f"{where}.pools"),
    )


def parse_price(value: object, where: str) -> Decimal:
    """Read an amount of money for an hour: ``12``, ``3.10``.

    Raises
    ------
    InvalidInput
        It is no such number.
    """
    text = str(value)
    if isinstance(value, bool) or not PRICE.fullmatch(text):
        hint = "a number with at most four digits behind the point, such as 3.10"
        raise InvalidInput(f"{text!r} is no price", where=where, value=value, hint=hint)
    return Decimal(text)


def describe_price(price: Decimal) -> str:
    """Return a price in words: ``12.40``."""
    return f"{price:.2f}"
