"""Which runs count as the same work."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.workload.fingerprint import TEXT_MAX, fingerprint, without_generated


def pods(*args: str, image: str = "registry.example/train:2.1", cpu: str = "4") -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu}}
    return {"containers": [{"image": image, "args": list(args), "resources": resources}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "--run=1f3e9a27-6f1c-4c55-9f0e-1d1f2a3b4c5d",
            "--run=00000000-6f1c-4c55-9f0e-ffff2a3b4c5d",
        ),
        ("--out=/data/2026-11-28T12:00:00Z", "--out=/data/2027-01-02T03:04:05Z"),
        ("--date=20261128", "--date=20270102"),
        ("--commit=9fceb02d0ae5", "--commit=1a410efbd13591db07496601ebc7a059dd55cfe9"),
        ("--id=1732791000", "--id=1732791999"),
    ],
)
def test_what_a_tool_writes_anew_does_not_count(one: str, other: str) -> None:
    assert fingerprint([pods(one)], 2) == fingerprint([pods(other)], 2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pods("--epochs=10"), pods("--epochs=100")),
        (pods("train"), pods("evaluate")),
        (pods("--year=2026"), pods("--year=2027")),
        (pods(image="a:1"), pods(image="a:2")),
        (pods(cpu="4"), pods(cpu="8")),
        (pods("a", "b"), pods("a b")),
        (pods("deadbeef"), pods("feedface")),
        (pods(), {}),
    ],
)
def test_what_the_author_chose_counts(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert fingerprint([one], 2) != fingerprint([other], 2)


def test_the_shape_counts() -> None:
    assert fingerprint([pods()], 2) != fingerprint([pods()], 4)
    assert fingerprint([pods(), pods("worker")], 2) != fingerprint([pods("worker"), pods()], 2)


def test_environments_and_names_do_not_count() -> None:
    named = pods()
    named["containers"][0] |= {"name": "x7f3k", "env": [{"name": "RUN", "value": "17"}]}
    assert fingerprint([named], 1) == fingerprint([pods()], 1)


def test_a_long_script_is_bounded() -> None:
    assert len(without_generated("a " * TEXT_MAX)) == TEXT_MAX


@pytest.mark.parametrize("spec", [{}, {"containers": None}, {"containers": [{"command": None}]}])
def test_an_empty_spec_has_a_fingerprint(spec: dict[str, Any]) -> None:
    assert len(fingerprint([spec], 1)) == 16
