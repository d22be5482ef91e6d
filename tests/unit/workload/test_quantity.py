"""Quantities: the format, exactness, rounding up, and what is refused."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.quantity import MAX_UNITS, to_base_units

SUFFIXES = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    **{s: Decimal(10) ** (3 * (i + 1)) for i, s in enumerate("kMGTPE")},
    **{f"{s}i": Decimal(2) ** (10 * (i + 1)) for i, s in enumerate("KMGTPE")},
}


@pytest.mark.parametrize(
    ("resource", "text", "expected"),
    [
        ("cpu", "100m", 100),
        ("cpu", "1.5", 1500),
        ("cpu", "2", 2000),
        ("cpu", 2, 2000),
        ("cpu", 0.5, 500),
        ("cpu", "1e3", 1_000_000),
        ("cpu", ".5", 500),
        ("cpu", "1.", 1000),
        ("cpu", "0.0001", 1),
        ("cpu", "1n", 1),
        ("cpu", "0", 0),
        ("cpu", "-0", 0),
        ("memory", "2Gi", 2 * 2**30),
        ("memory", "0.5Gi", 2**29),
        ("memory", "128974848", 128974848),
        ("memory", "129e6", 129_000_000),
        ("memory", "129M", 129_000_000),
        ("memory", "1E", 10**18),
        ("memory", "1E3", 1000),
        ("memory", "1e-3", 1),
        ("memory", "128974848000m", 128974848),
        ("memory", "1m", 1),
        ("nvidia.com/gpu", "8", 8),
        ("memory", "100E", MAX_UNITS),
        ("memory", "1e999999", MAX_UNITS),
        ("memory", "1e-999999", 1),
        ("memory", "0e999999", 0),
    ],
)
def test_reads_the_quantities_of_kubernetes(resource: str, text: object, expected: int) -> None:
    assert to_base_units(resource, text, where="f") == expected


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1gi", "Gi", "1e", "1e1.5", "1GiB", "--1", "1,5", "0x10", "1_0", "nan", "inf",
     "١", ".", "1" * 65, None, True, [], {}, float("nan"), float("inf")],
)  # fmt: skip
def test_refuses_what_is_no_quantity_and_names_the_field(text: object) -> None:
    with pytest.raises(InvalidInput, match="is not a quantity") as caught:
        to_base_units("cpu", text, where="spec.containers[0].resources.requests.cpu")
    assert caught.value.where == "spec.containers[0].resources.requests.cpu"


@pytest.mark.parametrize("text", ["-1", "-1m", "-.5Gi", -3])
def test_refuses_negative_quantities(text: object) -> None:
    with pytest.raises(InvalidInput, match="negative"):
        to_base_units("memory", text, where="f")


@given(
    number=st.decimals(min_value=0, max_value=10**9, allow_nan=False, places=6),
    suffix=st.sampled_from(sorted(SUFFIXES)),
    resource=st.sampled_from(["cpu", "memory"]),
)
def test_agrees_with_a_decimal_model(number: Decimal, suffix: str, resource: str) -> None:
    with localcontext() as context:
        context.prec = 100
        exact = number * SUFFIXES[suffix] * (1000 if resource == "cpu" else 1)
        expected = min(MAX_UNITS, math.ceil(exact))
    assert to_base_units(resource, f"{number:f}{suffix}", where="f") == expected


@given(number=st.integers(0, 10**12), exponent=st.integers(-30, 30), letter=st.sampled_from("eE"))
def test_agrees_with_a_decimal_model_on_exponents(number: int, exponent: int, letter: str) -> None:
    with localcontext() as context:
        context.prec = 100
        expected = min(MAX_UNITS, math.ceil(Decimal(number).scaleb(exponent)))
    assert to_base_units("memory", f"{number}{letter}{exponent}", where="f") == expected
