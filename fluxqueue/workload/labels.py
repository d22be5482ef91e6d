"""Every label, annotation, gate and name that fluxqueue reads or writes on objects.

Labels and annotations are user-writable: they choose and inform, but nothing is *decided* from the
ones we write. Identity is the UID in the rows.
"""

from __future__ import annotations

GATE = "fluxqueue"
"""The scheduling gate on managed pods."""

MANAGED = "fluxqueue/managed"
"""Label ``"true"`` on what admission took in; ``"false"`` on a namespace or object opts it out."""

SETS, SETS_MANAGED = "fluxqueue/sets", "managed"
"""Label on a namespace: pods that something else than a Job makes are queued there, too."""

AUTHOR_SUSPENDED = "fluxqueue/author-suspended"
"""Annotation on what is suspended: ``"true"`` if its author created it so, and it is not ours to
unsuspend; ``"false"`` if we have suspended it again. Gone while it runs."""

SUSPENDED = "fluxqueue/suspended"
"""Annotation ``"true"`` written at admission on what makes pods and waits suspended."""

SLOTS = "fluxqueue/slots"
"""Label written at admission in the pod templates of such: the kind of slots that a pod needs."""

QUEUE = "fluxqueue/queue"
"""Label: the named queue."""

DURATION = "fluxqueue/duration"
"""Annotation: expected run time, ``90``, ``90s``, ``15m``, ``2h30m``, ``1d``."""

PRIORITY = "fluxqueue/priority"
"""Annotation: integer priority within the queue's bounds; wins over the priority class."""

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
"""Annotation: an own Flux jobspec (YAML or JSON); see ``workload.own_jobspec``."""

MATCH_POLICY = "fluxqueue/match-policy"
"""Annotation: in which order nodes are filled for this workload, e.g. ``pack`` or ``lonode``."""

DEPENDS_ON = "fluxqueue/depends-on"
"""Annotation: what must have ended or started before, ``afterok:a,b afterany:c``."""

BEGIN_TIME = "fluxqueue/begin-time"
"""Annotation: not to start before, an RFC 3339 time or ``+2h`` after the creation."""

HOLD = "fluxqueue/hold"
"""Annotation ``"true"``: held until it is removed."""

ON_NODE_LOSS, REQUEUE = "fluxqueue/on-node-loss", "requeue"
"""Annotation ``requeue``: where a pod is lost with its node, all of them start anew."""

POD_GROUP = "fluxqueue/pod-group"
"""Label or annotation: the group of pods that this one starts with; see ``workload.groups``."""

GROUP_SIZE = "fluxqueue/group-size"
"""Label or annotation: how many pods the group has, ``5``, or at least and at most, ``3-5``."""

GROUP_USERS = "fluxqueue/group-users"
"""Annotation: users beside the group's own whose pods may join it, ``bob,carol``."""

GROUP = "fluxqueue/group"
"""Annotation written at admission on pods of a group: its name and size, however spelt."""

WITHOUT_OBJECT = "fluxqueue/without-object"
"""Label ``"true"`` on FluxJobs of workloads that no object stands for."""

USER = "fluxqueue/user"
"""Annotation written at admission, whatever stood there: the user who submitted the workload. In a
template it names the user for what a controller makes."""

SUBMITTER = "fluxqueue/submitter"
"""Annotation: the user for whom a GitOps account makes the object. Ignored on what other accounts
make. An administrator may choose another key (``submitter.annotation``)."""

JOBID = "fluxqueue/jobid"
"""Label written on released pods: the number of the job. The gate policy leaves them alone."""

NODES = "fluxqueue/nodes"
"""Annotation written on released pods, for people: the nodes of the whole allocation."""

DRAIN_REASON = "fluxqueue/drain-reason"
"""Annotation on a node that ``fluxqueue drain`` cordoned: why."""

CERTIFICATES, SELF_MADE = "fluxqueue/certificates", "self-made"
"""Label on the Secret whose certificates the controller makes and renews."""

VIEW = "fluxqueue/view"
"""Label ``self-made`` on the ConfigMap that says where the view server is, where ``fluxqueue
install`` or ``up`` has made it; a chart's has none."""

FORMER_SCHEDULERS = frozenset({"fluence", "fluxnetes", "FluxionScheduler"})
"""``spec.schedulerName`` of our predecessors: who names one asks for what we do now. They were
schedulers, we leave binding to the cluster's own."""

FORMER_GROUPS = (
    ("fluence.flux-framework.org/pod-group", "fluence.flux-framework.org/group-size"),
    ("fluence.pod-group", "fluence.group-size"),
    ("fluxnetes.group-name", "fluxnetes.group-size"),
)
"""Labels and annotations of our predecessors for a group and its size."""

POD_GROUP_OBJECTS = (
    "scheduling.x-k8s.io/pod-group",
    "scheduling.sigs.k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
)
"""Labels and annotations that name a PodGroup object, whose ``minMember`` is the least size."""


def group_keys() -> tuple[str, ...]:
    """Every label or annotation that names a group."""
    return (POD_GROUP, *(name for name, _ in FORMER_GROUPS), *POD_GROUP_OBJECTS)


DEFAULT_SCHEDULER = "default-scheduler"
HOSTNAME = "kubernetes.io/hostname"
MIRROR = "kubernetes.io/config.mirror"
OF_A_BATCH_JOB = "batch.kubernetes.io/controller-uid"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

PREFIX = "fluxqueue/"
SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
OWN_NAMESPACE = "fluxqueue-system"
