"""The directives of batch scripts, as data: what each one becomes, or why it is refused.

``script`` reads lines by these tables, and docs/reference_pages.py prints them. A directive has one
of three fates. It is *translated*, it is *ignored* because it only concerns mail and files, or it
is *refused* with a way out, because it changes where or how the job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What happens to a directive."""

    TRANSLATED = "translated"
    IGNORED = "ignored"
    REFUSED = "refused"


class Argument(StrEnum):
    """Whether a value follows. An optional one follows after ``=`` only."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Directive:
    """One option of sbatch or of flux batch.

    ``key`` is the name under which ``script`` keeps its value: options of both dialects with the
    same meaning share it. ``text`` says what it becomes, why it is ignored, or the way out.
    ``reads``: of another system, returns the options of sbatch that a value means.
    """

    name: str
    fate: Fate
    text: str
    short: str = ""
    argument: Argument = Argument.REQUIRED
    key: str = ""
    reads: Callable[[str, str], Iterable[tuple[str, str]]] | None = None

    @property
    def meaning(self) -> str:
        """Return the key of its value."""
        return self.key or self.name

    @property
    def spelled(self) -> str:
        """Return it as it is written."""
        return f"--{self.name}" if len(self.name) > 1 else f"-{self.name}"


def _means(name: str, text: str, short: str = "", key: str = "") -> Directive:
    return Directive(name, Fate.TRANSLATED, text, short, key=key)


def _flag(name: str, text: str, short: str = "", key: str = "") -> Directive:
    return Directive(name, Fate.TRANSLATED, text, short, Argument.NONE, key)


def _ignored(name: str, short: str = "", argument: Argument = Argument.REQUIRED) -> Directive:
    return Directive(name, Fate.IGNORED, _WHY_IGNORED.get(name, "mail or files"), short, argument)


def _refused(
    name: str, text: str, short: str = "", argument: Argument = Argument.REQUIRED
) -> Directive:
    return Directive(name, Fate.REFUSED, text, short, argument)


_NONE, _OPTIONAL = Argument.NONE, Argument.OPTIONAL
_WHY_IGNORED = {
    "get-user-env": "a container has its image's environment",
    "propagate": "a container has its own limits",
    "oversubscribe": "pods share nodes already",
    "prefer": "a wish without effect on the request",
    "time-min": "the job gets its whole time",
    "parsable": "about the output of sbatch",
    "quiet": "about the output of sbatch",
    "verbose": "about the output of sbatch",
    "wckey": "about accounting only",
    "acctg-freq": "about accounting only",
    "profile": "about accounting only",
    "delay-boot": "nodes are not booted for a job",
    "extra": "a note of the submitter",
    "wait-all-nodes": "the pods start together already",
    "stepmgr": "a pod has no steps",
    "oom-kill-step": "a pod has no steps",
    "kill-on-invalid-dep": "a job with a dependency that can never be satisfied is held",
}

_IMAGE = "use --image: the container image holds the files and programs"
_THREADS = "leave it out: the kubelet places threads. fluxqueue/cores: whole asks for whole cores"
_VOLUME = "mount a volume in a Job manifest"
_JOBSPEC = "describe the shape with the annotation fluxqueue/jobspec of a Job manifest"
_LEAVE_OUT = "leave it out"

OWN = (
    _means("image", "container image"),
    _means("within", "annotation `fluxqueue/within`: a level that all pods share"),
    _means("env", "environment: `NAME=VALUE`"),
)
"""Directives of fluxqueue itself, in both dialects."""

SLURM: tuple[Directive, ...] = (
    _means("nodes", "number of nodes. Of a range, the smallest that fits the tasks evenly", "N"),
    _means("ntasks", "number of tasks, which start together", "n"),
    _means("ntasks-per-node", "tasks on each node. With `-n`: at most"),
    _means("tasks-per-node", "the same as `--ntasks-per-node`", key="ntasks-per-node"),
    _means("ntasks-per-gpu", "tasks for each GPU. More than 1 only within one pod"),
    _means("cpus-per-task", "cpu of each task", "c"),
    _means("cpus-per-gpu", "cpu of each pod: this number for each of its GPUs"),
    _means("mem", "memory of each node, divided among its pods. `0`: all memory of the node"),
    _means("mem-per-cpu", "memory of each pod: this amount for each of its cpus"),
    _means("mem-per-gpu", "memory of each pod: this amount for each of its GPUs"),
    _means("gres", "GPUs and other devices of each node, divided among its pods"),
    _means("gpus", "GPUs of the whole job, divided among its pods", "G"),
    _means("gpus-per-node", "GPUs of each node, divided among its pods"),
    _means("gpus-per-task", "GPUs of each task"),
    Directive(
        "exclusive", Fate.TRANSLATED, "annotation `fluxqueue/exclusive`: whole nodes",
        argument=_OPTIONAL,
    ),
    _means("constraint", "required node affinity, by the site's table", "C"),
    _means("nodelist", "required node affinity: all of these nodes, and no others", "w"),
    _means("exclude", "required node affinity: none of these nodes", "x"),
    _means("time", "annotation `fluxqueue/duration`. It becomes the deadline", "t"),
    _means("partition", "label `fluxqueue/queue`", "p"),
    _means("qos", "priority or queue, by the site's table", "q"),
    _means("priority", "annotation `fluxqueue/priority`"),
    Directive(
        "nice", Fate.TRANSLATED, "annotation `fluxqueue/priority`, negated", argument=_OPTIONAL
    ),
    _means("dependency", "annotation `fluxqueue/depends-on`", "d"),
    _means("begin", "annotation `fluxqueue/begin-time`, in the submitter's time zone", "b"),
    _flag("hold", "annotation `fluxqueue/hold`", "H"),
    _means("array", "an Indexed Job with one pod for each index. `%N`: `parallelism`", "a"),
    _flag("requeue", "annotation `fluxqueue/on-node-loss: requeue`. The default, as in Slurm"),
    _flag("no-requeue", "a lost node fails the job. Preemption and operators can still requeue it"),
    _flag("spread-job", "the largest number of nodes that `--nodes` allows"),
    _flag("ignore-pbs", "`#PBS` lines are comments"),
    _means("signal", "`terminationGracePeriodSeconds`, and the signal that the script gets"),
    _means("job-name", "name of the Job. Annotation `fluxqueue/job-name` keeps the original", "J"),
    _means("account", "annotation `fluxqueue/account`, for reports", "A"),
    _means("comment", "annotation `fluxqueue/comment`"),
    _means("chdir", "working directory", "D"),
    _means("export", "`NAME=VALUE` becomes environment. `ALL` and `NONE` are ignored"),
    _flag("wait", "`submit --wait`", "W"),
    *OWN,
    _ignored("output", "o"),
    _ignored("error", "e"),
    _ignored("open-mode"),
    _ignored("mail-type"),
    _ignored("mail-user"),
    _ignored("get-user-env", argument=_OPTIONAL),
    _ignored("propagate", argument=_OPTIONAL),
    _ignored("oversubscribe", "s", _NONE),
    _ignored("prefer"),
    _ignored("time-min"),
    _ignored("delay-boot"),
    _ignored("wckey"),
    _ignored("acctg-freq"),
    _ignored("profile"),
    _ignored("parsable", argument=_NONE),
    _ignored("quiet", "Q", _NONE),
    _ignored("verbose", "v", _NONE),
    _ignored("kill-on-invalid-dep"),
    _ignored("extra"),
    _ignored("wait-all-nodes"),
    _ignored("stepmgr", argument=_NONE),
    _ignored("oom-kill-step", argument=_OPTIONAL),
    _refused("input", _IMAGE, "i"),
    _refused("wrap", "use a command: fluxqueue submit -- CMD"),
    _refused("export-file", "use --env=NAME=VALUE, or a ConfigMap in a Job manifest"),
    _refused("test-only", "use fluxqueue submit --dry-run", argument=_NONE),
    _refused("reservation", "ask the administrator for a queue with these nodes"),
    _refused("licenses", "limit the queue instead (FluxQueue spec.limits)", "L"),
    _refused("clusters", "use --context", "M"),
    _refused("deadline", "use --time: nothing removes a pending job at a time"),
    _refused("no-kill", _LEAVE_OUT + ": a lost pod fails the Job", "k", _OPTIONAL),
    _refused("immediate", "use fluxqueue explain -f SCRIPT to see whether it starts now", "I",
             _OPTIONAL),
    _refused("overcommit", "use fewer or smaller --cpus-per-task", "O", _NONE),
    _refused("nodefile", "use --nodelist", "F"),
    _refused("batch", "use --constraint: each pod runs the whole script"),
    _refused("mcs-label", "use the namespaces of the cluster"),
    _refused("resv-ports", "declare hostPort in a Job manifest", argument=_OPTIONAL),
    _refused("segment", "use --within=LEVEL, for example rack"),
    _refused("consolidate-segments", "use --within=LEVEL, for example rack", argument=_NONE),
    _refused("spread-segments", "use --within=LEVEL, for example rack", argument=_NONE),
    _refused("contiguous", "use --within=LEVEL, for example rack", argument=_NONE),
    _refused("switches", "use --within=LEVEL, for example rack"),
    _refused("use-min-nodes", "give --nodes as one number", argument=_NONE),
    _refused("distribution", _JOBSPEC, "m"),
    _refused("hint", _THREADS),
    _refused("threads-per-core", _THREADS),
    _refused("cores-per-socket", _THREADS),
    _refused("sockets-per-node", _THREADS),
    _refused("extra-node-info", _THREADS, "B"),
    _refused("ntasks-per-core", _THREADS),
    _refused("ntasks-per-socket", _THREADS),
    _refused("core-spec", _THREADS, "S"),
    _refused("thread-spec", _THREADS),
    _refused("cpu-freq", _THREADS),
    _refused("mem-bind", _THREADS),
    _refused("gpu-bind", _THREADS),
    _refused("gpu-freq", _THREADS),
    _refused("gres-flags", _THREADS),
    _refused("gpus-per-socket", "use --gpus-per-node or --gpus-per-task"),
    _refused("tres-per-task", "use --cpus-per-task and --gpus-per-task"),
    _refused("tres-bind", _THREADS),
    _refused("mincpus", "use --constraint, or --exclusive"),
    _refused("tmp", _VOLUME),
    _refused("bb", _VOLUME),
    _refused("bbf", _VOLUME),
    _refused("container", "use --image"),
    _refused("container-id", "use --image"),
    _refused("cluster-constraint", "use --context"),
    _refused("network", "use --constraint"),
    _refused("power", _LEAVE_OUT),
    _refused("reboot", _LEAVE_OUT, argument=_NONE),
    _refused("uid", "use --as, with the rights to impersonate"),
    _refused("gid", "set securityContext in a Job manifest"),
    _refused("bell", _LEAVE_OUT, argument=_NONE),
)  # fmt: skip
"""sbatch(1)."""

FLUX: tuple[Directive, ...] = (
    _means("nodes", "number of nodes. Without `-n`: one pod on each, and the nodes are whole", "N"),
    _means("nslots", "number of pods, which start together", "n", "ntasks"),
    _means("ntasks", "the same as `--nslots`", key="ntasks"),
    _means("tasks-per-node", "pods on each node", key="ntasks-per-node"),
    _means("cores-per-slot", "cpu of each pod", "c", "cpus-per-task"),
    _means("cores-per-task", "the same as `--cores-per-slot`", key="cpus-per-task"),
    _means("gpus-per-slot", "GPUs of each pod", "g", "gpus-per-task"),
    _means("gpus-per-task", "the same as `--gpus-per-slot`"),
    _means("gpus-per-node", "GPUs of each node, divided among its pods"),
    _means("mem", "memory of each pod", key="pod-memory"),
    _flag("exclusive", "annotation `fluxqueue/exclusive`: whole nodes", "x"),
    _means("requires", "required node affinity: `host:`, and names of the site's table"),
    _means("time-limit", "annotation `fluxqueue/duration`. It becomes the deadline", "t", "time"),
    _means("queue", "label `fluxqueue/queue`", "q", "partition"),
    _means("urgency", "16: the default. 0: `fluxqueue/hold`. Others: priority, the distance to 16"),
    _means("priority", "annotation `fluxqueue/priority`"),
    _means("dependency", "annotation `fluxqueue/depends-on`"),
    _means("begin-time", "annotation `fluxqueue/begin-time`", key="begin"),
    _flag("hold", "annotation `fluxqueue/hold`"),
    _means("job-name", "name of the Job"),
    _means("name", "name of the Job", key="job-name"),
    _means("bank", "annotation `fluxqueue/account`, for reports", "B", "account"),
    _means("cwd", "working directory", key="chdir"),
    _means("signal", "`terminationGracePeriodSeconds`: only `TERM@seconds`", key="flux-signal"),
    _flag("wait", "`submit --wait`"),
    *OWN,
    _ignored("output"),
    _ignored("error"),
    _ignored("unbuffered", "u", _NONE),
    _ignored("label-io", "l", _NONE),
    _ignored("verbose", "v", _OPTIONAL),
    _ignored("quiet", argument=_NONE),
    _refused("input", _IMAGE),
    _refused("setopt", _LEAVE_OUT + ": options of the Flux shell have no effect on pods", "o"),
    _refused("setattr", "use --time-limit, --queue, --requires and the other options", "S"),
    _refused("conf", _LEAVE_OUT + ": no Flux instance starts"),
    _refused("broker-opts", _LEAVE_OUT + ": no Flux instance starts"),
    _refused("dump", _LEAVE_OUT + ": no Flux instance starts", argument=_OPTIONAL),
    _refused("wrap", "use a command: fluxqueue submit -- CMD", argument=_NONE),
    _refused("flags", _LEAVE_OUT),
    _refused("taskmap", _JOBSPEC),
    _refused("rlimit", "set resources in a Job manifest"),
    _refused("add-file", _IMAGE),
    _refused("env-remove", "a container has its image's environment"),
    _refused("env-file", "use --env=NAME=VALUE, or a ConfigMap in a Job manifest"),
    _refused("dry-run", "use fluxqueue submit --dry-run", argument=_NONE),
)
"""flux-batch(1)."""


def by_long(dialect: Sequence[Directive], word: str) -> list[Directive]:
    """Return the directive of this name, or all of which ``word`` is an abbreviation."""
    exact = [one for one in dialect if one.name == word]
    return exact or [one for one in dialect if word and one.name.startswith(word)]


def by_short(dialect: Sequence[Directive], letter: str) -> Directive | None:
    """Return the directive with this letter, or None."""
    return next((one for one in dialect if one.short == letter), None)
