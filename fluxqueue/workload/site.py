"""What of an installation matters when a workload is read: its settings, as data.

Made by the controller and the webhook from their settings, handed to ``to_request``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels

DEFAULT_CPU_M = 1000
"""A pod that names no cpu counts as one core, as in Flux, where a slot has at least one."""

DEFAULT_GATHER_S = 600


@dataclass(frozen=True, slots=True)
class Site:
    """``default_cpu_m``: millicores of a pod that asks for none; ``levels``: top first;
    ``gather_s``: for how long the pods of a group may come before they are overdue."""

    default_cpu_m: int = DEFAULT_CPU_M
    levels: Levels = DEFAULT_LEVELS
    gather_s: int = DEFAULT_GATHER_S


DEFAULT_SITE = Site()
