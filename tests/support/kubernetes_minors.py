"""What each minor of Kubernetes has of features that tests need: gates and versions of its API.

``control_plane`` reads it. A minor that is not in the table fails the tests that ask, because a
suite that skips itself on a new version tests nothing. Make the entry of a new minor from
``pkg/features/kube_features.go``: a gate that is gone there is part of another, or always open.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Feature:
    """How a feature is turned on: its gates, and the versions of its API that must be served.

    Neither: it is on by default.
    """

    gates: tuple[str, ...] = ()
    served: tuple[str, ...] = ()

    def flags(self) -> dict[str, list[str]]:
        """Return the further arguments of each program."""
        gates = [f"--feature-gates={','.join(f'{one}=true' for one in self.gates)}"]
        served = [f"--runtime-config={','.join(f'{one}=true' for one in self.served)}"]
        programs = ("kube-controller-manager", "kube-scheduler", "kube-apiserver")
        found = dict.fromkeys(programs, gates if self.gates else [])
        return found | {"kube-apiserver": found["kube-apiserver"] + (served if self.served else [])}


ALWAYS = Feature()


@dataclass(frozen=True, slots=True)
class Minor:
    """The features of one minor. None: it has no such feature."""

    groups: Feature | None = None
    """PodGroups of ``scheduling.k8s.io``, with all that belongs to them."""
    taint_rules: Feature | None = None
    node_claims: Feature | None = None
    """Claims (DRA) that ask for cpu and memory of nodes."""


OLDER = Minor()
MINORS: Mapping[int, Minor] = {
    **dict.fromkeys(range(30, 36), OLDER),
    36: Minor(
        groups=Feature(
            gates=(
                *("GenericWorkload", "GangScheduling"),
                *("TopologyAwareWorkloadScheduling", "WorkloadAwarePreemption"),
            ),
            served=("scheduling.k8s.io/v1alpha2",),
        ),
        taint_rules=Feature(
            gates=("DRADeviceTaintRules",),
            served=("resource.k8s.io/v1beta2", "resource.k8s.io/v1alpha3"),
        ),
    ),
    37: Minor(
        groups=Feature(
            gates=(
                *("GenericWorkload", "WorkloadWithJob", "CompositePodGroup"),
                *("TopologyAwareWorkloadScheduling", "PodGroupPreemptionPolicy"),
                "DRAWorkloadResourceClaims",
            ),
            served=("scheduling.k8s.io/v1beta1", "scheduling.k8s.io/v1alpha3"),
        ),
        taint_rules=ALWAYS,
        node_claims=Feature(gates=("DRANodeAllocatableResources",)),
    ),
}
"""Each minor that the tests know. In 1.37 GangScheduling and WorkloadAwarePreemption are part of
GenericWorkload, and v1alpha2 of the API is gone."""


class UnknownMinor(AssertionError):
    """The programs are of a minor that is not in the table."""


def minor_of(told: str) -> int:
    """Return the minor that a program's ``--version`` names."""
    found = re.search(r"v1\.(\d+)\.", told)
    if found is None:
        raise UnknownMinor(f"no version of Kubernetes: {told!r}")
    return int(found[1])


def features(minor: int) -> Minor:
    """Return the features of a minor.

    Raises
    ------
    UnknownMinor
        It is not in the table.
    """
    if minor not in MINORS:
        raise UnknownMinor(f"Kubernetes 1.{minor} is not in {__name__}.MINORS: add its entry")
    return MINORS[minor]


@cache
def features_of(assets: Path) -> Minor:
    """Return the features of the API server in a folder of programs."""
    command = [assets / "kube-apiserver", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return features(minor_of(told))
