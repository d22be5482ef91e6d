"""PSI/J: what ``read_spec`` of our executor makes of specifications, as one document of JSON."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from psij import InvalidJobException, JobAttributes, JobSpec, ResourceSpecV1

from fluxqueue.client.psij_executor import read_spec

MIB = 1024 * 1024
SPECS: dict[str, dict[str, Any]] = {
    "whole": {
        "name": "sim",
        "arguments": ["--fast"],
        "directory": Path("/data/my runs"),
        "environment": {"SEED": "1"},
        "resources": ResourceSpecV1(
            node_count=2,
            processes_per_node=3,
            cpu_cores_per_process=4,
            gpu_cores_per_process=1,
            exclusive_node_use=True,
            memory=6 * 512 * MIB + 1,
        ),
        "attributes": JobAttributes(
            duration=timedelta(hours=2),
            queue_name="night",
            custom_attributes={"fluxqueue.image": "a", "slurm.reservation": "theirs"},
        ),
    },
    "single": {"launcher": "single", "resources": ResourceSpecV1(process_count=4)},
    "mpirun": {"launcher": "mpirun"},
    "input": {"stdin_path": Path("/data/in")},
    "reserved": {"attributes": JobAttributes(reservation_id="r1")},
    "unknown": {"attributes": JobAttributes(custom_attributes={"fluxqueue.color": "red"})},
    "nothing": {"executable": None},
}


def answer(given: dict[str, Any]) -> Any:
    """Return the command and the options, or the refusal."""
    fields = {"executable": "simulate", "resources": ResourceSpecV1(), **given}
    try:
        words, options = read_spec(JobSpec(**fields))
    except InvalidJobException as error:
        return str(error)
    return [words, {key: str(value) for key, value in options.items()}]


print(json.dumps({name: answer(given) for name, given in SPECS.items()}))
