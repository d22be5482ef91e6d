"""The ledger's account of watched pods, against a model that recounts from scratch."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue_devtools.demo.ledger import DemoLedger
from tests.support.views import running_pod

Obj = dict[str, Any]


def pod(name: str, phase: str, node: str = "node-1") -> Obj:
    """A pod of 8 cores of the Job ``pi``."""
    made = running_pod(name, node=node)
    made["status"]["phase"] = phase
    if not node:
        del made["spec"]["nodeName"]
    return made


def test_a_pod_occupies_its_node_from_binding_to_its_end() -> None:
    """Two pods of 8 cores, overlapping for one second of three: 16 core-seconds each."""
    ledger = DemoLedger()
    ledger.take(None, pod("a", "Pending", ""), 0.0)
    ledger.take(pod("a", "Pending", ""), pod("a", "Pending"), 1.0)
    ledger.take(None, pod("b", "Pending"), 2.0)
    ledger.take(pod("a", "Pending"), pod("a", "Succeeded"), 3.0)
    ledger.take(pod("b", "Pending"), pod("b", "Failed"), 4.0)
    account = ledger.accounts["default"]
    assert (account.together, account.together_peak) == (0, 2)
    assert account.core_s == 32.0
    assert ledger.node_peak_m == {"node-1": 16000}
    assert (account.succeeded["pi"], account.failed, len(account.pods)) == (1, 1, 2)


def test_a_pod_that_vanishes_while_it_runs_frees_its_node() -> None:
    """Deletion without a final phase counts neither as success nor as failure."""
    ledger = DemoLedger()
    ledger.take(None, pod("a", "Running"), 0.0)
    ledger.take(pod("a", "Running"), None, 2.0)
    account = ledger.accounts["default"]
    assert (account.together, account.cores_m, account.core_s) == (0, 0, 16.0)
    assert (account.succeeded.total(), account.failed) == (0, 0)


STATES = st.sampled_from([("Pending", ""), ("Pending", "n1"), ("Running", "n1"), ("Failed", "n1")])


@given(st.lists(st.tuples(st.integers(0, 4), st.one_of(st.none(), STATES)), max_size=40))
def test_counts_are_those_of_a_recount(changes: list[tuple[int, Any]]) -> None:
    """Whatever the order of changes, what is counted equals what is there."""
    ledger, present = DemoLedger(), dict[str, Obj]()
    peak = 0
    for at_s, (number, state) in enumerate(changes):
        name = f"p{number}"
        old = present.pop(name, None)
        new = None if state is None else pod(name, *state)
        if new is not None:
            present[name] = new
        ledger.take(old, new, float(at_s))
        there = [
            one
            for one in present.values()
            if one["spec"].get("nodeName") and one["status"]["phase"] != "Failed"
        ]
        peak = max(peak, len(there))
        assert ledger.accounts["default"].together == len(there)
        assert ledger.node_m["n1"] == 8000 * len(there)
    assert ledger.accounts["default"].together_peak == peak
