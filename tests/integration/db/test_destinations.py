"""Which node a pod is released to, and whether the node's label alone names it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.fluxjob.node import Destination, NodeFact
from fluxqueue.fluxjob.request import CPU
from tests.support.rows import Rows, cpu_node, pod, workload

HERE = cpu_node("n0")
FEW_NODES = 200


def _named(hostname: str | None) -> NodeFact:
    return replace(HERE, labels={} if hostname is None else {"kubernetes.io/hostname": hostname})


def _others(number: int) -> list[NodeFact]:
    """Nodes that hold nothing."""
    return [replace(cpu_node(f"x{n}"), capacity={CPU: 0}) for n in range(number)]


ALIKE = replace(_others(1)[0], labels={"kubernetes.io/hostname": "n0"})


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([HERE, *_others(FEW_NODES - 1)], Destination("n0", "n0", is_labelled_index=True)),
        ([HERE, *_others(FEW_NODES)], Destination("n0", "n0")),
        ([HERE, ALIKE], Destination("n0", "n0")),
        ([_named("host-0"), *_others(1)], Destination("n0", "host-0")),
        ([_named(None), *_others(1)], Destination("n0", None)),
    ],
    ids=["its label is enough", "many nodes", "two of one label", "another name", "no label"],
)
async def test_a_node_is_told_by_its_label_where_that_is_enough(
    rows: Rows, nodes: list[NodeFact], expected: Destination
) -> None:
    """For the pod template and for a pod by itself alike. Elsewhere its name is written, too."""
    await rows.add_nodes(*nodes)
    await rows.see(workload("job", is_pinnable=True), workload("pod", pods=(pod("p"),)))
    await rows.match()
    wanted = await rows.wanted("job")
    assert wanted is not None
    assert wanted.pin == expected
    assert [one.to for one in await rows.reconcile("pod")] == [expected]


async def test_a_node_that_is_gone_is_told_by_name(rows: Rows) -> None:
    await rows.add_nodes(HERE)
    await rows.see(workload("job", is_pinnable=True))
    await rows.match()
    await rows.add_nodes(gone=("n0",))
    wanted = await rows.wanted("job")
    assert wanted is not None
    assert wanted.pin == Destination("n0", None)


@pytest.mark.parametrize(("before", "is_pinned"), [(None, False), ("n0", False), ("n9", True)])
@pytest.mark.parametrize("is_suspended", [False, True])
async def test_only_another_node_is_taken_out_of_the_template(
    rows: Rows, before: str | None, is_pinned: bool, is_suspended: bool
) -> None:
    """Whatever was seen last of its suspension: an affinity to the node before would keep its pods
    from this one for ever, and a release that is sent again may change nothing of what runs.
    """
    await rows.add_nodes(HERE)
    await rows.see(workload("job", is_pinnable=True))
    await rows.match()
    await rows.execute(
        "UPDATE fluxjobs SET pinned_to = :before, observed = CASE WHEN :is_suspended"
        " THEN observed ELSE observed - 'is_suspended' END",
        before=before,
        is_suspended=is_suspended,
    )
    wanted = await rows.wanted("job")
    assert wanted is not None
    is_fixed = before is None and not is_suspended
    assert wanted.pin == (None if is_fixed else Destination("n0", "n0", is_labelled_index=True))
    assert wanted.is_pinned is is_pinned
