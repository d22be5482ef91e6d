"""Times of the embedded control plane, with the real ones as defaults.

A demo or a test shortens them. No other behaviour of the controllers is an option.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """All durations in seconds, with the defaults of Kubernetes 1.36.

    - ``job_backoff_s``: delay before the first replacement of a failed pod. It doubles up to
      ``job_backoff_max_s``.
    - ``job_batch_s``: how long pod changes are collected before a Job's status follows.
    - ``node_grace_s``: silence after which a node counts as lost.
    - ``pod_gc_s``: delay before pods of a deleted node are removed.
    """

    job_backoff_s: float = 10.0
    job_backoff_max_s: float = 600.0
    job_batch_s: float = 1.0
    node_grace_s: float = 40.0
    node_monitor_s: float = 5.0
    pod_gc_s: float = 40.0
    namespace_retry_s: float = 5.0

    @classmethod
    def quick(cls) -> ControllerOptions:
        """Return options for demos and tests: the same behaviour without the long waits."""
        return cls(
            job_backoff_s=0.5,
            job_backoff_max_s=5.0,
            job_batch_s=0.1,
            node_grace_s=12.0,
            node_monitor_s=1.0,
            pod_gc_s=2.0,
            namespace_retry_s=0.5,
        )
