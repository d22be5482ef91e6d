"""``--node`` of the embedded cluster's command line: one node of its own shape."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from localcluster.__main__ import _shape, parse
from localcluster.nodes.shape import NodeShape


def test_sizes_and_labels_are_told_apart() -> None:
    """Four keys shape the node, every other one is a label."""
    shape = _shape("gpu-1,cpu=8,memory=32Gi,gpus=4,pods=20,pool=gpu,example.org/tier=a")
    labels = {"pool": "gpu", "example.org/tier": "a"}
    assert shape == NodeShape("gpu-1", cpu="8", memory="32Gi", gpus=4, pods=20, labels=labels)
    assert _shape("plain") == NodeShape("plain")


@pytest.mark.parametrize("text", ["n,cpu", "n,=8", "n,gpus=many"])
def test_what_cannot_be_read_is_named(text: str) -> None:
    """argparse shows the message."""
    with pytest.raises(ArgumentTypeError, match=r"n,"):
        _shape(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--node", "x,cpu=abc"], "cpu of node 'x': 'abc' is no quantity such as 16, 500m or 64Gi"),
        (["--memory=-1Gi"], "memory of node 'node-1': '-1Gi' is no quantity"),
        (["--node", "Bad_Name"], "name of a node: 'Bad_Name': a lowercase RFC 1123 subdomain"),
        (["--node", "a,pool=a/b"], "label pool=a/b of node 'a'"),
        (["--nodes", "-1"], "--nodes: -1 is less than 0"),
        (["--nodes", "2", "--node", "node-1"], "two nodes have the name 'node-1'"),
        (["--pods", "-1"], "pods of node 'node-1': -1 is less than 0"),
        (["--port", "99999"], "'99999' is no number from 0 to 65535"),
        (["--node-grace", "0"], "'0' is no number of seconds above 0"),
    ],
)
def test_a_wrong_command_line_is_refused_with_its_value(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit):
        parse(arguments)
    assert said in capsys.readouterr().err
