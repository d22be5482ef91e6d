"""``--node`` of the embedded cluster's command line: one node of its own shape."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from localcluster.__main__ import _shape
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
