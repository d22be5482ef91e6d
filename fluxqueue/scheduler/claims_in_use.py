"""Volume claims for one pod at a time: whether one of a request is in use. Pure.

``cycle`` calls it for jobs in their turn and for sweeps, ``top_up`` for running workloads. The
ledger counts the uses of the whole cluster. A claim is free again when the pod that uses it ends,
so no node, plan or limit matters here.
"""

from __future__ import annotations

from fluxqueue.fluxjob.exclusive_use import describe_exclusive
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec


def why_in_use(matcher: Matcher, request: Jobspec) -> str | None:
    """Return which claim of ``request`` another pod uses, in words, or None."""
    for name in matcher.ask(request).claims:
        if matcher.ledger.claims[name]:
            return f"{describe_claim(name)}, and another pod uses it"
    return None


def describe_claim(name: str) -> str:
    """Return the begin of a sentence on a claim, by its name as a resource."""
    return f"{describe_exclusive(name)} is for one pod at a time (ReadWriteOncePod)"
