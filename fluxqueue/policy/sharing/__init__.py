"""Resource sharing policies: what of each node jobs may have beside unmanaged pods.

Other packages import the interface from here.
"""

from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.policy.sharing.interface import Grant, SharingPolicy

__all__ = ["ForeignPod", "Grant", "NodeFact", "SharingPolicy"]
