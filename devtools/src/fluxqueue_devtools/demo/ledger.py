"""An account of what was seen to run, from watched pods alone and never from our own rows.

An informer's change handler feeds it in the order of the API server's versions. So the counts after
each change are those of one real moment of the cluster. Pure: the caller passes the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.pods import controller_owner

Pod = Mapping[str, Any]

_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(slots=True)
class Account:
    """The pods of one namespace.

    A pod *occupies* its node from its binding until it is terminal or deleted. ``core_s`` is the
    integral of occupied cores over time.
    """

    pods: set[str] = field(default_factory=set)
    succeeded: Counter[str] = field(default_factory=Counter)
    """Pods that succeeded, by name of their Job (or of the pod itself)."""
    failed: int = 0
    together: int = 0
    together_peak: int = 0
    cores_m: int = 0
    core_s: float = 0.0
    _counted_until_s: float | None = None

    def advance(self, now_s: float) -> None:
        """Add the time until now to the account."""
        if self._counted_until_s is not None:
            self.core_s += self.cores_m / 1000 * (now_s - self._counted_until_s)
        self._counted_until_s = now_s

    def occupy(self, cpu_m: int, change: int, now_s: float) -> None:
        """Record that one pod more (+1) or fewer (-1) occupies a node."""
        self.advance(now_s)
        self.together += change
        self.together_peak = max(self.together_peak, self.together)
        self.cores_m += change * cpu_m


@dataclass(slots=True)
class NodeSeen:
    """A node: its cpu in millicores, and when it came and went (monotonic seconds)."""

    capacity_m: int
    came_s: float
    gone_s: float | None = None


@dataclass(slots=True)
class DemoLedger:
    """Accounts by namespace, and the highest use of every node in millicores."""

    accounts: defaultdict[str, Account] = field(default_factory=lambda: defaultdict(Account))
    node_m: Counter[str] = field(default_factory=Counter)
    node_peak_m: dict[str, int] = field(default_factory=dict)

    def take(self, old: Pod | None, new: Pod | None, now_s: float) -> None:
        """Record one change of a pod: an informer's arguments, and the time in seconds."""
        pod = new or old
        if pod is None:
            return
        account = self.accounts[pod["metadata"].get("namespace", "")]
        account.pods.add(pod["metadata"]["uid"])
        before, after = _occupied(old), _occupied(new)
        if before != after:
            cpu_m = raw_request(pod["spec"]).get("cpu", 0)
            if before:
                account.occupy(cpu_m, -1, now_s)
                self.node_m[before] -= cpu_m
            if after:
                account.occupy(cpu_m, 1, now_s)
                self.node_m[after] += cpu_m
                self.node_peak_m[after] = max(self.node_peak_m.get(after, 0), self.node_m[after])
        if new is not None and _phase(new) in _TERMINAL and _phase(old) not in _TERMINAL:
            if _phase(new) == "Succeeded":
                account.succeeded[_job_name(new)] += 1
            else:
                account.failed += 1


def _occupied(pod: Pod | None) -> str:
    """Return the node that the pod uses now, or an empty string."""
    if pod is None or _phase(pod) in _TERMINAL:
        return ""
    return str(pod["spec"].get("nodeName") or "")


def _phase(pod: Pod | None) -> str:
    return "" if pod is None else str((pod.get("status") or {}).get("phase") or "")


def _job_name(pod: Pod) -> str:
    owner = controller_owner(pod)
    return str(owner["name"] if owner is not None else pod["metadata"]["name"])
