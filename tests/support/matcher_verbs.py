"""The verbs of the matcher, answered from one line of text."""

from __future__ import annotations

from fluxion.formats.writers import write
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxqueue.errors import FluxQueueError
from fluxqueue.jobspec import Jobspec

VERBS = [
    SearchVerb.ALLOCATE,
    SearchVerb.ALLOCATE,
    SearchVerb.ALLOCATE_ORELSE_RESERVE,
    SearchVerb.ALLOCATE_WITH_SATISFIABILITY,
    SearchVerb.WITHOUT_ALLOCATING,
    SearchVerb.SATISFIABILITY,
]


def answer(matcher: FluxionMatcher, jobspec: Jobspec, job: int, now: int, verb: SearchVerb) -> str:
    """What a match gave, as text that can be compared."""
    try:
        found = matcher.match(jobspec, job, now=now, verb=verb)
    except FluxQueueError as failure:
        return f"{type(failure).__name__}"
    return "satisfiable" if found is None else f"{found.at} {found.end}\n{write(found, 'simple')}"
