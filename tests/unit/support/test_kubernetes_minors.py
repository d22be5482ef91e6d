"""Features of a minor: an unknown minor fails, and the flags of a feature reach each program."""

from __future__ import annotations

import pytest

from tests.support.kubernetes_minors import ALWAYS, MINORS, UnknownMinor, features, minor_of


def test_a_minor_that_is_not_in_the_table_fails() -> None:
    """It must not be a skip: a suite that skips on a new version tests nothing."""
    with pytest.raises(UnknownMinor, match=r"1.999 is not in .*MINORS: add its entry"):
        features(999)


@pytest.mark.parametrize(
    ("told", "minor"),
    [("Kubernetes v1.37.2", 37), ("Kubernetes v1.38.0-beta.0", 38), ("Kubernetes v1.36.3\n", 36)],
)
def test_a_program_tells_its_minor(told: str, minor: int) -> None:
    assert minor_of(told) == minor


def test_a_program_without_a_version_fails() -> None:
    with pytest.raises(UnknownMinor, match="no version"):
        minor_of("etcd Version: 3.7")


def test_gates_reach_all_programs_and_versions_the_api_server_only() -> None:
    groups = MINORS[37].groups
    assert groups is not None
    flags = groups.flags()
    assert set(flags) == {"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
    assert all("GenericWorkload=true" in one[0] for one in flags.values())
    assert [len(one) for _, one in sorted(flags.items())] == [2, 1, 1]
    assert flags["kube-apiserver"][1].startswith("--runtime-config=scheduling.k8s.io/v1beta1=true")


def test_what_is_on_by_default_needs_no_flags() -> None:
    assert list(ALWAYS.flags().values()) == [[], [], []]
