"""Sweeps: BatchJobs with independent pods, which start one by one and not as a gang. Pure.

The annotation ``fluxqueue/gang: "false"`` makes a BatchJob a sweep. Its request is one pod. It
starts when one pod fits, and each further pod takes its turn in the queue (``scheduler.sweeps``).
Its ``parallelism`` says how many pods run at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes, said_on

SWEEP_PODS_MAX = 5_000
"""The largest parallelism of a sweep. Its pods exist while they wait."""
SWEEP_PODS_USUAL = 1_000
"""The parallelism that ``submit --array`` sets if the user sets none."""

_TOGETHER = "is about pods that start together, and the pods of this Job are independent"


def is_sweep(job: Mapping[str, Any]) -> bool:
    """Tell whether the pods of ``job`` are independent. Its annotation wins over its template's."""
    return said_on(job, labels.GANG) == "false"


def check_sweep(job: Mapping[str, Any], wishes: Wishes) -> None:
    """Refuse what contradicts independent pods, and more pods than a sweep may have at once.

    Raises
    ------
    InvalidInput
        The error names the field.
    """
    for key, is_said in (
        (labels.WITHIN, wishes.within is not None),
        (labels.PREFER_WITHIN, wishes.prefer_within is not None),
        (labels.SPREAD, wishes.is_spread),
        (labels.ON_NODE_LOSS, wishes.restarts_on_loss),
    ):
        if is_said:
            hint = f'remove it, or remove {labels.GANG}: "false"'
            raise InvalidInput(_TOGETHER, where=wishes.paths.get(key, key), hint=hint)
    parallelism = int(job["spec"].get("parallelism") or 1)
    if parallelism > SWEEP_PODS_MAX:
        raise InvalidInput(
            f"is more than a Job with independent pods may run at once, {SWEEP_PODS_MAX}",
            where="spec.parallelism",
            value=parallelism,
            hint=f"set it to {SWEEP_PODS_MAX} or less; spec.completions may be larger",
        )
