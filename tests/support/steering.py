"""Changes by hand of FluxJobs, carried into their rows as the controller carries a changed spec.

For tests without a cluster. Each verb changes the field that ``kube.steer`` would change, and
returns what became of each change: nothing for one that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.db.store.steering import FluxJobOf, SteeringOutcome, apply_spec_changes
from tests.support.sql import dicts

_FIND = """SELECT uid, name, overrides -> 'spec' AS steered FROM fluxjobs
WHERE namespace = :namespace AND :reference IN (uid, name, workload_name, CAST(jobid AS text))
ORDER BY ended_at IS NOT NULL, jobid DESC LIMIT 1"""

_requests = map("request-{}".format, count())


async def steer(
    database: Database, namespace: str, references: Sequence[str], actor: str, **fields: Any
) -> list[SteeringOutcome]:
    """Change fields of the specs of FluxJobs, each found by name, UID or number."""
    outcomes: list[SteeringOutcome] = []
    for reference in references:
        async with database.begin() as tx:
            for row in await dicts(tx, _FIND, namespace=namespace, reference=reference):
                spec = {**(row["steered"] or {}), **fields}
                if spec.get("requeue") == "":
                    spec["requeue"] = next(_requests)
                if spec.get("hold") is False and (row["steered"] or {}).get("hold") is not None:
                    spec["hold"] = None  # only a change of the field has an effect
                spec = {name: one for name, one in spec.items() if one is not None}
                fluxjob = FluxJobOf(namespace, row["name"], row["uid"])
                by = dict.fromkeys(fields, actor)
                outcomes += await apply_spec_changes(tx, fluxjob, spec, by) or ()
    return outcomes


hold = partial(steer, hold=True)
release = partial(steer, hold=False)
requeue = partial(steer, requeue="")
cancel = partial(steer, cancel=True)
