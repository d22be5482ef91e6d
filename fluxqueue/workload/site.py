"""The settings of an installation that matter when a workload is read, as data.

The controller and the webhook make it from their settings and pass it to ``to_request``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.workload.aliases import DEFAULT_ALIASES, Aliases

DEFAULT_CPU_M = 1000
"""A pod that names no cpu counts as one core, as in Flux: a slot has at least one there."""

DEFAULT_GATHER_S = 600


@dataclass(frozen=True, slots=True)
class Site:
    """Settings of an installation.

    ``default_cpu_m``: millicores of a pod that asks for none. ``levels``: top first. ``gather_s``:
    time (seconds) within which the pods of a group must arrive. Later they are overdue.
    ``aliases``: keys of other systems.
    """

    default_cpu_m: int = DEFAULT_CPU_M
    levels: Levels = DEFAULT_LEVELS
    gather_s: int = DEFAULT_GATHER_S
    aliases: Aliases = DEFAULT_ALIASES


DEFAULT_SITE = Site()
