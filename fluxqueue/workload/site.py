"""What of an installation matters when a workload is read: its settings, as data.

Made by the controller and the webhook from their settings, handed to ``to_request``.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels

DEFAULT_CPU_M = 1000
"""A pod that names no cpu counts as one core, as in Flux, where a slot has at least one."""


@dataclass(frozen=True, slots=True)
class Site:
    """``default_cpu_m``: millicores of a pod that asks for none; ``levels``: top first."""

    default_cpu_m: int = DEFAULT_CPU_M
    levels: Levels = DEFAULT_LEVELS


DEFAULT_SITE = Site()
