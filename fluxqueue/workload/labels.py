"""Every label, annotation, gate and name that fluxqueue reads or writes on objects.

Labels and annotations are user-writable: they choose and inform, but fluxqueue *decides* nothing
from those that it writes. Identity is the UID in the rows.
"""

from __future__ import annotations

GATE = "fluxqueue"
"""The scheduling gate on managed pods."""

MANAGED = "fluxqueue/managed"
"""Label ``"true"`` on managed objects. ``"false"`` on a namespace or object opts it out."""

SETS, SETS_MANAGED = "fluxqueue/sets", "managed"
"""Label on a namespace: pods of owners other than Jobs are queued there, too."""

AUTHOR_SUSPENDED = "fluxqueue/author-suspended"
"""Annotation on suspended objects: the origin of the suspension. Absent while it runs.

``"true"`` if its author created it suspended, so that fluxqueue must not unsuspend it. ``"false"``
if fluxqueue has suspended it again.
"""

SUSPENDED = "fluxqueue/suspended"
"""Annotation ``"true"`` from admission on objects that make pods and wait suspended."""

SLOTS = "fluxqueue/slots"
"""Label from admission in their pod templates: the kind of slots that a pod needs."""

QUEUE = "fluxqueue/queue"
"""Label: the named queue."""

DURATION = "fluxqueue/duration"
"""Annotation: expected run time, ``90``, ``90s``, ``15m``, ``2h30m``, ``1d``."""

PRIORITY = "fluxqueue/priority"
"""Annotation: integer priority within the queue's bounds. Wins over the priority class."""

PRIORITY_CLASS = "fluxqueue/priority-class"
"""Annotation: a class whose value is the priority in the queue. The pods keep their own class.

It names a WorkloadPriorityClass of Kueue, or else a PriorityClass.
"""

EXCLUSIVE = "fluxqueue/exclusive"
"""Annotation ``"true"``: whole nodes."""

SPREAD = "fluxqueue/spread"
"""Annotation ``node``: at most one pod per node."""

WITHIN = "fluxqueue/within"
"""Annotation: a level of the cluster that all pods share: its name, its label, or ``node``."""

PREFER_WITHIN = "fluxqueue/prefer-within"
"""Annotation: a level that all pods share if that can be, else the next one up, and so on."""

CORES = "fluxqueue/cores"
"""Annotation ``whole``: each pod's cpu counts as whole cores."""

JOBSPEC = "fluxqueue/jobspec"
"""Annotation: an own Flux jobspec (YAML or JSON). See ``workload.own_jobspec``."""

MATCH_POLICY = "fluxqueue/match-policy"
"""Annotation: order in which nodes are filled for this workload, e.g. ``pack``, ``lonode``."""

DEPENDS_ON = "fluxqueue/depends-on"
"""Annotation: jobs that must have ended or started before, ``afterok:a,b afterany:c``."""

BEGIN_TIME = "fluxqueue/begin-time"
"""Annotation: the earliest start, an RFC 3339 time or ``+2h`` after the creation."""

HOLD = "fluxqueue/hold"
"""Annotation ``"true"``: held until it is removed."""

JOB_NAME = "fluxqueue/job-name"
"""Annotation: the name in a batch script, if its Job has another one."""

ACCOUNT = "fluxqueue/account"
"""Annotation: the account or bank in a batch script, for reports."""

COMMENT = "fluxqueue/comment"
"""Annotation: the comment in a batch script."""

ON_NODE_LOSS, REQUEUE = "fluxqueue/on-node-loss", "requeue"
"""Annotation ``requeue``: if a pod is lost with its node, all of them restart."""

GANG = "fluxqueue/gang"
"""Annotation ``"false"`` on a Job: its pods are independent, and start one by one."""

WAIT, GATED = "fluxqueue/wait", "gated"
"""Annotation ``gated`` on a Job: it is not suspended while it waits, and its pods come gated."""

START_TIMEOUT = "fluxqueue/start-timeout"
"""Annotation: how long its start may take, as a duration. Then it returns to the queue."""

PROVISION = "fluxqueue/provision"
"""Annotation: whether nodes may be asked for, ``never``, ``when-needed`` or ``now``."""

POD_GROUP = "fluxqueue/pod-group"
"""Label or annotation: the group of pods that this one starts with. See ``workload.groups``."""

GROUP_SIZE = "fluxqueue/group-size"
"""Label or annotation: how many pods the group has, ``5``, or at least and at most, ``3-5``."""

GROUP_USERS = "fluxqueue/group-users"
"""Annotation: other users with pods that may join the group, ``bob,carol``."""

FOLLOWERS = "fluxqueue/followers"
"""Annotation on a driver: how many pods it makes, with what requests, ``2 cpu=4,memory=8Gi``.

See ``workload.followers``.
"""

GROUP = "fluxqueue/group"
"""Annotation from admission on pods of a group: its name and size, in one spelling."""

NATIVE_GROUP = "fluxqueue/native-group"
"""Annotation ``"true"`` from admission in the template of a Job: its pods stay in their PodGroup.

``spec.scheduling`` of the Job asks for it. Pods of other Jobs leave the PodGroup that Kubernetes
makes for each Job.
"""

WITHOUT_OBJECT = "fluxqueue/without-object"
"""Label ``"true"`` on FluxJobs of workloads without an object of their own."""

USER = "fluxqueue/user"
"""Annotation from admission, in place of any other value: the submitter of the workload.

In a template it names the user for the pods or Jobs that a controller makes.
"""

SUBMITTER = "fluxqueue/submitter"
"""Annotation: the user for which a GitOps account makes the object.

It is ignored on what other accounts make. An administrator may choose another key
(``submitter.annotation``).
"""

JOBID = "fluxqueue/jobid"
"""Label on released pods: the number of the job. The gate policy exempts these pods."""

NODES = "fluxqueue/nodes"
"""Annotation on released pods, for users: the nodes of the whole allocation."""

PLACEMENT = "fluxqueue/placement"
"""Annotation in the template of a released BatchJob: the node of each index, with a proof.

The webhook takes it off the pods that it places (``workload.index_placement``).
"""

PLACED = "fluxqueue/placed"
"""Label ``"true"`` beside ``fluxqueue/placement``: only these pods are sent to the webhook."""

DRAIN_REASON = "fluxqueue/drain-reason"
"""Annotation on a node that ``fluxqueue drain`` cordoned: the reason."""

CERTIFICATES, SELF_MADE = "fluxqueue/certificates", "self-made"
"""Label on the Secret with the certificates that the controller makes and renews."""

VIEW = "fluxqueue/view"
"""Label ``self-made`` on the ConfigMap that locates the view server.

``fluxqueue install`` or ``up`` sets it on the one that it makes. A chart's has none.
"""

NODE_POOL = "fluxqueue/node-pool"
"""Label on objects in fluxqueue's own namespace that bring nodes: the FluxNodePool.

They are placeholder pods, ProvisioningRequests and CapacityBuffers. They are deleted when the
nodes are used.
"""

DISCOVERED_FROM = "fluxqueue/discovered-from"
"""Annotation on a FluxNodePool that ``fluxqueue pools discover`` has made: its source.

The pool follows its source. Remove the annotation, and it is a pool like any other.
"""

DISCOVERED_SPEC = "fluxqueue/discovered-spec"
"""Annotation on such a FluxNodePool: the fields that its source gave, as JSON.

A field that differs from it was changed by the administrator, and does not follow.
"""

SOURCE_MISSING = "fluxqueue/source-missing-since"
"""Annotation on such a FluxNodePool whose source is gone: since when, as an RFC 3339 time."""

PROTECTED = "fluxqueue/protected"
"""Annotation on a node that autoscalers must not remove now: those annotations that we have set.

They and this one are removed when the node is not needed any more. Annotations of others stay.
"""

FORMER_SCHEDULERS = frozenset({"fluence", "fluxnetes", "FluxionScheduler"})
"""``spec.schedulerName`` of the predecessors. A pod that names one asks to be queued.

They were schedulers. fluxqueue leaves binding to the cluster's own scheduler.
"""

FORMER_GROUPS = (
    ("fluence.flux-framework.org/pod-group", "fluence.flux-framework.org/group-size"),
    ("fluence.pod-group", "fluence.group-size"),
    ("fluxnetes.group-name", "fluxnetes.group-size"),
)
"""Labels and annotations of the predecessors for a group and its size."""

POD_GROUP_OBJECTS = (
    "scheduling.x-k8s.io/pod-group",
    "scheduling.sigs.k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
)
"""Labels and annotations that name a PodGroup object. Its ``minMember`` is the minimum."""


def group_keys() -> tuple[str, ...]:
    """Return every label or annotation that names a group."""
    return (POD_GROUP, *(name for name, _ in FORMER_GROUPS), *POD_GROUP_OBJECTS)


SPARK_ROLE = "spark-role"
"""Label of Spark: ``driver`` or ``executor``. Executors are queued with their driver."""

FIELD_MANAGER = "fluxqueue"
"""The field manager of what fluxqueue writes for a job. Admission knows it."""

DEFAULT_SCHEDULER = "default-scheduler"
HOSTNAME = "kubernetes.io/hostname"
MIRROR = "kubernetes.io/config.mirror"
OF_A_BATCH_JOB = "batch.kubernetes.io/controller-uid"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_FAILURES = "batch.kubernetes.io/job-index-failure-count"

PREFIX = "fluxqueue/"
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
OWN_NAMESPACE = "fluxqueue-system"
NEVER_MANAGED = SYSTEM_NAMESPACES | {OWN_NAMESPACE}
"""The namespaces of the system and of fluxqueue."""

PATH = "/mutate"
PATH_ALL_ASK = "/mutate/all-ask"
"""The path of the webhook for namespaces where pods that a controller makes are queued."""
PATH_PLACE = "/mutate/place"
"""The path for pods with a placement. None of them is refused."""
