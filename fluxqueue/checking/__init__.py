"""The invariants, checked against a live database and cluster (``fluxqueue check``)."""

from fluxqueue.checking.check import check, check_starts
from fluxqueue.checking.findings import Finding, Severity

__all__ = ["Finding", "Severity", "check", "check_starts"]
