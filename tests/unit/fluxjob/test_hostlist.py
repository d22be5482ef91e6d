"""Hostlists: written, read, and read back as they were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob import hostlist


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["a"], "a"),
        (["node1"], "node1"),
        (["node0", "node1", "node2", "node3", "node7"], "node[0-3,7]"),
        (["node08", "node09", "node10"], "node[08-10]"),
        (["node8", "node9", "node10"], "node[8-10]"),
        (["node9", "node010"], "node[9,010]"),
        (["n1", "m2", "n2"], "n1,m2,n2"),
        (["n3", "n2", "n2"], "n[3,2,2]"),
        (["n1", "login", "n2"], "n1,login,n2"),
        (["1", "2"], "[1-2]"),
        (["ip-10-0-0-1.ec2.internal"], "ip-10-0-0-1.ec2.internal"),
    ],
)
def test_writes_and_reads_back(hosts: list[str], text: str) -> None:
    assert hostlist.compress(hosts) == text
    assert hostlist.expand(text) == hosts


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("rack[1-2]node[3-4]", ["rack1node3", "rack1node4", "rack2node3", "rack2node4"]),
        ("n[1-2].example", ["n1.example", "n2.example"]),
        ("n[007-009]", ["n007", "n008", "n009"]),
    ],
)
def test_reads_brackets_anywhere(text: str, hosts: list[str]) -> None:
    assert hostlist.expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["n[", "n]", "n[]", "n[1", "n[1-]", "n[-1]", "n[3-1]", "n[a]", "a,,b", ",a", "a,", "n[[1]]",
     "n[1-2000000]", "n[1-2000][1-2000]", "n[1" + "0" * 30 + "]"],
)  # fmt: skip
def test_refuses_what_is_no_hostlist(text: str) -> None:
    with pytest.raises(InvalidInput):
        hostlist.expand(text)


@pytest.mark.parametrize("host", ["", "a,b", "a[1]", "a b", "a\n"])
def test_refuses_names_that_could_not_be_read_back(host: str) -> None:
    with pytest.raises(InvalidInput):
        hostlist.compress(["n1", host])


_NAMES = st.one_of(
    st.from_regex(r"(node|n|rack-1-)[0-9]{1,4}", fullmatch=True),
    st.from_regex(r"[a-z0-9.-]{1,40}", fullmatch=True),
    st.integers(0, 30).map(lambda n: f"w{n:02d}"),
)


@given(st.lists(_NAMES, max_size=40))
def test_round_trip(hosts: list[str]) -> None:
    assert hostlist.expand(hostlist.compress(hosts)) == hosts


@given(st.integers(0, 2000), st.integers(1, 300), st.integers(0, 5))
def test_one_run_is_one_range(first: int, length: int, width: int) -> None:
    hosts = [f"n{number:0{width}d}" for number in range(first, first + length)]
    assert hostlist.compress(hosts).count(",") == 0
