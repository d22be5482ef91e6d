"""Which taints a toleration covers, as the API of Kubernetes defines it."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.request import Taint, Toleration


@pytest.mark.parametrize(
    ("toleration", "taint", "expected"),
    [
        (Toleration("a", "Equal", "1"), Taint("a", "1"), True),
        (Toleration("a", "Equal", "1"), Taint("a", "2"), False),
        (Toleration("a"), Taint("a"), True),
        (Toleration("a", "Exists"), Taint("a", "2"), True),
        (Toleration("a", "Exists"), Taint("b", "2"), False),
        (Toleration(operator="Exists"), Taint("b", "2", "NoExecute"), True),
        (Toleration("a", "Exists", effect="NoSchedule"), Taint("a", effect="NoExecute"), False),
        (Toleration("", "Equal", "1"), Taint("", "1"), False),
        (Toleration("sla", "Gt", "900"), Taint("sla", "950"), True),
        (Toleration("sla", "Gt", "900"), Taint("sla", "900"), False),
        (Toleration("sla", "Lt", "-5"), Taint("sla", "-6"), True),
        (Toleration("sla", "Lt", "900"), Taint("sla", "high"), False),
        (Toleration("sla", "Gt", "900"), Taint("other", "950"), False),
        (Toleration("sla", "Gt", "900", "NoSchedule"), Taint("sla", "950", "NoExecute"), False),
    ],
)
def test_a_toleration_covers_a_taint(toleration: Toleration, taint: Taint, expected: bool) -> None:
    assert toleration.tolerates(taint) is expected
