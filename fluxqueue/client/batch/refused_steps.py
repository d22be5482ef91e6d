"""Steps of a script that no pod can run: they are refused before the script is submitted.

``script_request`` calls it. Pure. Otherwise they would fail, or mean something else, hours later.
"""

from __future__ import annotations

import re

from fluxqueue.client.batch.task_layout import TaskLayout
from fluxqueue.errors import InvalidInput

_NOT_IN_A_POD = re.compile(
    r"(?<![\w./-])srun\s(?:[^;|&#\n]*?\s)?(?:-m |--distribution[= ])?"
    r"((?P<always>--mpi[= ]pmi\w*|--multi-prog|--het-group\b|--bcast\b)"
    r"|(?:plane|arbitrary)(?:=\d+)?(?=\s))"
)


def refuse_steps(text: str, layout: TaskLayout) -> None:
    """Refuse a script that runs once and whose steps need what its pods lack.

    Raises
    ------
    InvalidInput
        ``srun`` is called with an option that has no meaning in pods.
    """
    lines = (line.strip() for line in text.split("\n"))
    for line in lines:
        found = None if line.startswith("#") else _NOT_IN_A_POD.search(line)
        if found and (found["always"] or layout.has_agents):
            raise InvalidInput(
                f"srun {found[1]} does not work in pods",
                where=line[:60],
                value=found[1],
                hint="start MPI programs by mpirun"
                if "pmi" in found[1]
                else "write one srun for each program, side by side",
            )
