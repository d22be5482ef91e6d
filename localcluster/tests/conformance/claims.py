"""Which recorded scenarios of a real API server the embedded one claims to answer alike.

``CLAIMS`` names each claimed scenario. ``differences`` maps the number of a step that differs to
why, ``unread`` a part of its answers, or what is said of a whole watch, that is not compared to
why, ``by_object`` compares watch events per object (controllers work on several objects at once,
and which of them comes first is not fixed) and gives reads a moment to become true.
``NOT_SERVED`` says what is not there and what it answers instead.  Each scenario of the recordings
is in exactly one of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Claim:
    """How far a scenario is answered alike."""

    differences: dict[int, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)
    by_object: bool = False

    def read(self, found: list[str]) -> list[str]:
        """Of the differences of a replay those outside the parts that are not compared."""
        return [
            line
            for line in found
            if not any(line.startswith(part) or f": {part}" in line for part in self.unread)
        ]


_EXACT = (
    "apply-create-conflict-force",
    "apply-status",
    "conflicts",
    "crd-defaults-pruning",
    "crd-field-validation",
    "crd-register",
    "crd-status-subresource",
    "crd-update-of-definition",
    "http-errors",
    "impersonation",
    "job-create-generatename",
    "job-create-invalid",
    "job-managed-by",
    "job-status-separation",
    "label-selectors",
    "leases",
    "list-resourceversion",
    "pod-binding",
    "pod-create-defaults",
    "pod-delete",
    "pod-eviction",
    "pod-field-selectors",
    "pod-generatename",
    "pod-jsonpatch",
    "pod-lifecycle",
    "pod-log",
    "pod-mutability-gated",
    "pod-mutability-pending",
    "pod-mutability-running",
    "pod-status-separation",
    "rbac",
    "watch-basic",
    "watch-expired",
    "watch-selectors",
    "watch-timeout",
    "webhook-answers",
    "webhook-failure",
    "webhook-reinvocation",
    "webhook-review-job",
    "webhook-selection",
)
"""In order, event by event."""

_EXACT_BY_OBJECT = (
    "crd-finalizer",
    "deletecollection",
    "job-create-defaults",
    "daemonset",
    "deployment-create",
    "dry-run",
    "events-aggregation",
    "job-delete-default",
    "job-failed-backofflimit",
    "job-failed-backofflimit-zero-parallel",
    "job-gated-template",
    "job-indexed",
    "job-mutability-after-run-indexed",
    "job-mutability-after-run-nonindexed",
    "job-mutability-never-started-indexed",
    "job-mutability-never-started-nonindexed",
    "job-mutability-running-indexed",
    "job-mutability-running-nonindexed",
    "job-pod-failure-policy",
    "job-scale-running",
    "job-success-policy",
    "job-suspend-running",
    "job-suspended-status",
    "job-tracking-finalizer",
    "job-ttl",
    "job-unsuspend-json",
    "job-unsuspend-merge",
    "job-unsuspend-strategic",
    "namespace-lifecycle",
    "node-create-and-cordon",
    "scheduler-spread-and-fill",
)
"""Each object's own history. Controllers take part."""

LONG: dict[str, str] = {
    "job-pod-replacement-policy": "Kubernetes' own waiting times: the back-off of a Job",
    "node-not-ready": "Kubernetes' own waiting times: 40 s until a node counts as lost, 40 s more",
}
"""Scenarios of more than 20 s, and why. They run in ``make test-long``."""

_PACE = "read between two status writes of a controller; which of them is seen depends on pace"
_COLLECTOR = "the collector is faster here than the Job controller's finalizer removal"
_FUTURE = "the recorded time lay in the future; the replay sends the present, so an age is shown"
_CONTROLLER_USER = "controllers here have no token, so userInfo has neither uid nor credential-id"

_PARTIAL: dict[str, Claim] = {
    "access-rules": Claim({31: "who may read /metrics finds none"}),
    "apply-merge-keys": Claim(
        unread={
            "body.status": "how far the Deployment controller has come depends on pace",
            "body.metadata.managedFields[2]": "that controller's own fields, of that status",
        }
    ),
    "discovery-apis": Claim(
        {
            0: "lists the groups that are served; the recording has all of 1.36",
            2: "lists the resources that are served",
            4: "CronJobs are not served",
        }
    ),
    "discovery-core": Claim(
        {
            0: "says what it is: a version of its own, no Go",
            3: "lists the resources that are served; the recording has all of 1.36",
            4: "lists the resources that are served; the recording has all of 1.36",
            15: "lists the paths that are served",
        }
    ),
    "apply-after-update": Claim({11: "a PUT without change keeps its version; recorded is a new"}),
    "authentication": Claim(
        {
            24: "a token of a deleted account is refused at once, not after ten seconds",
        },
    ),
    "crd-table": Claim({7: _FUTURE, 8: _FUTURE, 9: _FUTURE, 12: _FUTURE}),
    "crd-validation-errors": Claim(
        {26: "a wrong apiVersion is refused before unknown fields are looked at: no warning"}
    ),
    "discovery-crd": Claim(
        {
            6: "recorded reduced to the new group; all groups are served",
            8: "recorded reduced to the new group; all groups are served",
            9: "recorded reduced to the new group; all groups are served",
            11: "schemas and paths as far as kubectl needs them; no list kinds, no watch paths",
        }
    ),
    "events-api": Claim({36: "the recording gives the length of a long message only"}),
    "job-delete-background": Claim({5: _COLLECTOR}, by_object=True),
    "job-delete-foreground": Claim({4: _COLLECTOR, 5: _COLLECTOR, 9: _PACE}, by_object=True),
    "job-delete-orphan": Claim({5: _COLLECTOR}, by_object=True),
    "job-failed-deadline": Claim(
        {
            0: "one more status write: readiness is reported before the deadline strikes",
            10: _PACE,
            11: _PACE,
        },
        by_object=True,
    ),
    "job-pod-replacement-policy": Claim({}, by_object=True),
    "job-run-complete": Claim({8: _PACE}, by_object=True),
    "job-unsuspend-apply": Claim(
        {
            2: "managedFields are written only once an apply has touched the object",
            3: "managedFields are written only once an apply has touched the object",
        },
        by_object=True,
    ),
    "list-pagination": Claim({33: "uses a token that the recording does not show"}),
    "owner-gc": Claim(
        {9: "the watch starts before the collector has removed wrong-uid"}, by_object=True
    ),
    "patch-semantics": Claim(
        {
            26: "unchanged, unless the Deployment controller is slower than the replay",
            27: "unchanged, unless the Deployment controller is slower than the replay",
            29: "unchanged, unless the Deployment controller is slower than the replay",
            35: "the cause is listed twice, recorded are three",
        }
    ),
    "pod-gates": Claim(
        {38: "the pod ungated last is bound, and its event written, before the list is read"},
        by_object=True,
    ),
    "node-not-ready": Claim(
        {24: "has the event of the pod below only where it came in time"},
        unread={"watch #8 objects": "the Job's replacement pod may come when it is closed already"},
        by_object=True,
    ),
    "pod-priorityclass": Claim({0: "versions of what the server makes when it starts"}),
    "replicaset": Claim({10: _PACE}, by_object=True),
    "table-builtin": Claim(
        {
            20: "events of pods that the scheduler here reports and the recording left out",
            26: "the recording had leases of nodes of other scenarios",
            28: "versions of what the server makes when it starts",
        },
        by_object=True,
    ),
    "watch-bookmarks": Claim(
        {
            5: "one bookmark, recorded are two",
            6: "the row of a bookmark has empty cells, recorded are 0 and <unknown>",
            14: "one bookmark, recorded are two",
            16: "the recording has the events of writes that it does not show",
        },
        by_object=True,
    ),
    "policies": Claim({43: "policies are asked before a name is generated, and name none"}),
    "vap-scheduling-gates": Claim(
        {
            5: "types of policies are checked when they are written, not noted in their status",
            13: "the recording does not show where it has this token from",
        }
    ),
    "webhook-config": Claim(
        {
            19: "another wording of the syntax error in a matchCondition",
            21: "only AdmissionReview v1 is sent, so a webhook for v1beta1 alone is refused",
        }
    ),
    "webhook-review-pod": Claim({9: _CONTROLLER_USER, 14: _CONTROLLER_USER, 17: _CONTROLLER_USER}),
}

CLAIMS: dict[str, Claim] = (
    {name: Claim() for name in _EXACT}
    | {name: Claim(by_object=True) for name in _EXACT_BY_OBJECT}
    | _PARTIAL
)

NOT_SERVED: dict[str, str] = {
    "deployment-rollout-and-scale": (
        "the rollout takes the same steps, but its intermediate counts depend on pace"
    ),
    "openapi-index": (
        "v3 documents have what kubectl reads, v2 is empty: kubectl falls back to what it knows"
    ),
    "quota-and-limitrange": "ResourceQuota and LimitRange are not served",
    "scheduler-unschedulable": "texts are as recorded, the moments of repeated attempts are not",
    "statefulset": "ordered start and stop are there, intermediate status writes differ",
}
