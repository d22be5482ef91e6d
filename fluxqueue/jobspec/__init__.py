"""Flux jobspecs: what a job asks for (RFC 14 and RFC 25), parsed and checked.

``graph`` (the matcher), ``workload`` and the command line call it. It knows nothing of Kubernetes.
Pure: text in, data out.
"""

from __future__ import annotations

from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import Count, Jobspec, Resource, Task

__all__ = ["Constraint", "Count", "Jobspec", "NodeDemand", "Resource", "Task"]
