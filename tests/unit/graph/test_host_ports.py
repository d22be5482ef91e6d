"""Host ports are amounts that each node has by itself, and only jobs that ask for them pay."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.exclusive_use import implied_capacity, port_use
from fluxqueue.fluxjob.request import CPU, describe
from fluxqueue.graph.ledger.placement import Others
from fluxqueue.graph.ledger.share_table import PORTS_MAX
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.blockers import why_no_plan
from fluxqueue.jobspec import Jobspec
from tests.support.pool_model import node, placement, request

ANY, ONE, TWO = "0.0.0.0", "10.0.0.1", "10.0.0.2"


def port(number: int = 8080, address: str = ANY, protocol: str = "TCP") -> dict[str, int]:
    """What a pod with one port takes of its node."""
    return port_use([(protocol, number, address)])


def asked(ports: dict[str, int], count: int = 1, **more: int) -> Jobspec:
    """So many pods of one core with these ports."""
    return request(count, **{CPU: 1, **ports, **more})


def cluster(*names: str) -> Matcher:
    """Nodes of four cores."""
    found = Matcher(ShareLedger(), "lonode")
    for name in names:
        found.set_node(node(name), {})
    return found


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        (port(), port(), False),
        (port(), port(protocol="UDP"), True),
        (port(), port(8081), True),
        (port(), port(address=ONE), False),
        (port(address=ONE), port(), False),
        (port(address=ONE), port(address=ONE), False),
        (port(address=ONE), port(address=TWO), True),
        (port(address="::"), port(address=ONE), True),
    ],
)
def test_two_pods_share_a_node_as_kube_scheduler_permits_it(
    first: dict[str, int], second: dict[str, int], *, is_shared: bool
) -> None:
    """Either may be the first, and either may be unmanaged."""
    for there, comes in ((first, second), (second, first)):
        matcher = cluster("a")
        matcher.allocate("x", matcher.match_now(asked(there), 0))
        assert _fits(matcher, asked(comes)) == is_shared
        matcher.cancel("x")
        matcher.set_node(node("a"), {CPU: 1, **there})
        assert _fits(matcher, asked(comes)) == is_shared
        matcher.set_node(node("a"), {CPU: 1})
        assert _fits(matcher, asked(comes))


def _fits(matcher: Matcher, wanted: Jobspec) -> bool:
    try:
        matcher.match_now(wanted, 0)
    except InsufficientResources:
        return False
    return True


def test_all_addresses_count_whatever_the_others_are() -> None:
    """A pod with one port on all addresses and on one takes all of the port."""
    both = port_use([("TCP", 9, ONE), ("TCP", 9, ANY), ("TCP", 9, TWO)])
    assert both == {"host-port:TCP:9": 1 << 20, f"host-port:TCP:9:{ONE}": 1} | {
        f"host-port:TCP:9:{TWO}": 1
    }
    assert [implied_capacity(name) for name in sorted(both)] == [1 << 20, 1, 1]
    assert implied_capacity(CPU) == 0


def test_other_jobs_pay_nothing_for_ports_of_unmanaged_pods() -> None:
    """A port gets a column when a job asks for it, and then all nodes know the jobs that use it."""
    matcher = cluster("a", "b", "c")
    daemon = {CPU: 1, **port(9100)}
    for name in ("a", "b"):
        matcher.set_node(node(name), daemon, Others(("kube-system",), daemon))
    width = len(matcher.ledger.columns)
    matcher.match_now(request(2, cpu=1), 0)
    assert len(matcher.ledger.columns) == width
    (there,) = matcher.match_now(asked(port(9100)), 0).nodes
    assert there == "c"
    assert len(matcher.ledger.columns) == width + 1
    assert matcher.is_satisfiable(asked(port(9100), 3))
    assert why_no_plan(matcher.by_shares, asked(port(9100), 3)) == (
        "DaemonSets and static pods of namespace kube-system leave too little room on a,b for good"
    )
    matcher.remove_node("a")
    matcher.set_node(node("a"), {})
    assert set(matcher.match_now(asked(port(9100), 2), 0).nodes) == {"a", "c"}


def test_a_port_that_is_asked_for_late_keeps_reservations_as_they_are() -> None:
    """The plan was made without its column."""
    matcher = cluster("a")
    matcher.allocate("x", placement(("a", {CPU: 4}), until=50))
    matcher.reserve(matcher.match_later(request(1, cpu=4, duration_s=50), 0), 0)
    later = matcher.match_later(request(1, duration_s=10, **{CPU: 1, **port()}), 0)
    assert later.starts_at == 100
    matcher.reserve(later, 0)
    after = matcher.match_later(request(1, duration_s=10, **{CPU: 1, **port()}), 0)
    assert after.starts_at == 110, "one pod with this port at a time"
    beside = matcher.match_later(request(1, duration_s=10, **{CPU: 1, **port(1)}), 0)
    assert beside.starts_at == 100


def test_the_number_of_ports_is_bounded() -> None:
    """Further ports are left to kube-scheduler, and their jobs start as if they had none."""
    matcher = cluster("a", "b")
    for number in range(PORTS_MAX):
        assert _fits(matcher, asked(port(number + 1)))
    width = len(matcher.ledger.columns)
    late = asked(port(60_000))
    for key in "xyz":
        matcher.allocate(key, matcher.match_now(late, 0))
    assert len(matcher.ledger.columns) == width
    assert dict(matcher.match_now(late, 0).slots[0].resources)["host-port:TCP:60000"]


def test_ports_are_named_in_reasons() -> None:
    """An amount of them would say nothing."""
    assert describe({CPU: 2000, **port()}) == "2 cpu, host port 8080/TCP"
    assert describe(port(53, ONE, "UDP")) == f"host port 53/UDP of {ONE}"
    matcher = cluster("a")
    matcher.allocate("x", matcher.match_now(asked(port()), 0))
    with pytest.raises(InsufficientResources, match="host port 8080/TCP"):
        matcher.match_now(asked(port()), 0)
