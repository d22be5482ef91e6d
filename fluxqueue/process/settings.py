"""Settings: the environment, read and validated once.

Each process entry point calls ``Settings.from_env(os.environ)``. Everything else takes the values
it needs as arguments. Two variables of the machine are read elsewhere. The search for Postgres
reads ``FLUXQUEUE_PG_BIN``, the command line ``FLUXQUEUE_DATA_DIR``.

``describe()`` renders the table of all variables for ``--help`` and the documentation, from the
same data that validates them.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.cluster_accounts import CLUSTER_CONTROLLERS

MATCH_POLICY = "pack"
"""The match policy if neither workload nor administrator sets one, also in the simulator."""

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True)
class _Variable:
    """Define how one field is read: its environment variable, its meaning, the allowed values."""

    name: str
    help: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    is_secret: bool = False

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        if self.choices:
            return ", ".join(self.choices)
        if self.low is None and self.high is None:
            return "any text"
        return f"{_plain(self.low)} to {_plain(self.high)}"

    def parse(self, text: str, kind: type) -> Any:
        """Read ``text`` as ``kind``.

        Raises
        ------
        InvalidSettings
            The error names the variable, the value and what is allowed.
        """
        if kind is bool:
            return self._parse_bool(text)
        if kind is str:
            value = text.strip().upper() if self.choices == _LOG_LEVELS else text.strip()
            if self.choices and value not in self.choices:
                raise self._refused(text, self.allowed)
            return value
        try:
            number = kind(text)
        except ValueError as error:
            raise self._refused(text, f"{_KIND_WORDS[kind]}, {self.allowed}") from error
        # The comparison is written so that "nan" fails it.
        is_inside = (self.low is None or number >= self.low) and (
            self.high is None or number <= self.high
        )
        if not is_inside:
            raise self._refused(text, f"{_KIND_WORDS[kind]}, {self.allowed}")
        return number

    def _parse_bool(self, text: str) -> bool:
        word = text.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
        raise self._refused(text, "true or false")

    def _refused(self, text: str, allowed: str) -> InvalidSettings:
        shown = "***" if self.is_secret else text
        return InvalidSettings(
            f"{shown!r} is not valid", where=self.name, value=shown, hint=f"give {allowed}"
        )


_KIND_WORDS: dict[type, str] = {int: "a whole number", float: "a number"}
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _plain(number: float | None) -> str:
    return "any" if number is None else f"{number:.15g}"


def _setting(default: Any, name: str, help_text: str, **more: Any) -> Any:
    variable = _Variable(name, help_text, **more)
    return field(default=default, repr=not variable.is_secret, metadata={"variable": variable})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a process. Units are in the names (seconds, millicores, rows)."""

    # Where things are
    database_url: str = _setting(
        "", "DATABASE_URL", "Postgres to use instead of the embedded one", is_secret=True
    )
    kubeconfig: str = _setting(
        "", "KUBECONFIG", "kubeconfig file (empty: in-cluster, then ~/.kube/config)"
    )
    pg_bin: str = _setting(
        "", "FLUXQUEUE_PG_BIN", "folder with the programs of the embedded Postgres (empty: search)"
    )
    own_namespace: str = _setting(
        "fluxqueue-system", "FLUXQUEUE_NAMESPACE", "namespace of fluxqueue itself, never managed"
    )
    # Logs
    log_level: str = _setting(
        "INFO", "FLUXQUEUE_LOG_LEVEL", "lowest level that is logged", choices=_LOG_LEVELS
    )
    log_json: bool = _setting(False, "FLUXQUEUE_LOG_JSON", "one JSON object per line")
    # Probes and metrics
    http_port: int = _setting(
        8081,
        "FLUXQUEUE_HTTP_PORT",
        "port of /healthz, /readyz and /metrics of controller and worker (0: none)",
        low=0,
        high=65535,
    )
    # The webhook's certificates, made by the controller
    cert_secret: str = _setting(
        "",
        "FLUXQUEUE_CERT_SECRET",
        "Secret for the webhook's CA and certificate (empty: they come from elsewhere)",
    )
    cert_service: str = _setting(
        "fluxqueue-webhook", "FLUXQUEUE_CERT_SERVICE", "Service that the certificate is valid for"
    )
    cert_configuration: str = _setting(
        "fluxqueue",
        "FLUXQUEUE_CERT_CONFIGURATION",
        "MutatingWebhookConfiguration with the caBundle to keep up to date",
    )
    cert_days: int = _setting(
        365,
        "FLUXQUEUE_CERT_DAYS",
        "days that the certificate is valid, renewed after two thirds (its CA: ten times as long)",
        low=1,
        high=3650,
    )
    # Database
    db_pool_size: int = _setting(
        5, "FLUXQUEUE_DB_POOL_SIZE", "connections kept per process", low=1, high=100
    )
    db_pool_overflow: int = _setting(
        5, "FLUXQUEUE_DB_POOL_OVERFLOW", "connections beyond those, for bursts", low=0, high=100
    )
    db_pool_timeout_s: float = _setting(
        10.0, "FLUXQUEUE_DB_POOL_TIMEOUT_S", "wait for a free connection", low=0.1, high=300
    )
    statement_timeout_s: float = _setting(
        30.0, "FLUXQUEUE_STATEMENT_TIMEOUT_S", "longest SQL statement", low=1, high=3600
    )
    # Worker
    worker_concurrency: int = _setting(
        8, "FLUXQUEUE_WORKER_CONCURRENCY", "tasks at once in one worker", low=1, high=200
    )
    worker_polling_s: float = _setting(
        0.5,
        "FLUXQUEUE_WORKER_POLLING_S",
        "how often to look for due tasks (a worker is notified of new ones)",
        low=0.05,
        high=60,
    )
    worker_shutdown_s: float = _setting(
        15.0,
        "FLUXQUEUE_WORKER_SHUTDOWN_S",
        "time for running tasks at shutdown (after 15 s another worker may run them as well)",
        low=0,
        high=25,
    )
    status_interval_s: float = _setting(
        2.0,
        "FLUXQUEUE_STATUS_INTERVAL_S",
        "least time between two status updates of one FluxJob, half of it for the last one",
        low=0.1,
        high=60,
    )
    maintain_interval_s: float = _setting(
        10.0,
        "FLUXQUEUE_MAINTAIN_INTERVAL_S",
        "interval of rescue, resync, retention and drift",
        low=1,
        high=3600,
    )
    resync_interval_s: float = _setting(
        300.0,
        "FLUXQUEUE_RESYNC_INTERVAL_S",
        "interval of the full comparison with the cluster",
        low=1,
        high=86400,
    )
    history_retention_s: int = _setting(
        30 * 86400,
        "FLUXQUEUE_HISTORY_RETENTION_S",
        "how long ended FluxJobs and history are kept",
        low=60,
        high=10 * 366 * 86400,
    )
    accounting_retention_s: int = _setting(
        400 * 86400,
        "FLUXQUEUE_ACCOUNTING_RETENTION_S",
        "how long accounting rows are kept",
        low=60,
        high=50 * 366 * 86400,
    )
    # Leadership
    lease_duration_s: float = _setting(
        10.0,
        "FLUXQUEUE_LEASE_DURATION_S",
        "a silent leader is replaced after this time plus up to 4 s (by default less than 15 s)",
        low=1,
        high=300,
    )
    matcher_lease_s: float = _setting(
        5.0,
        "FLUXQUEUE_MATCHER_LEASE_S",
        "a silent matcher is replaced after this time",
        low=1,
        high=300,
    )
    lease_renew_s: float = _setting(
        3.0, "FLUXQUEUE_LEASE_RENEW_S", "how often a leader renews its Lease", low=0.2, high=100
    )
    # Placement of pods at their creation
    placement_key_file: str = _setting(
        "",
        "FLUXQUEUE_PLACEMENT_KEY_FILE",
        "file with the key that worker and webhook share (empty: each pod of an Indexed Job that"
        " is on several nodes is patched)",
    )
    pod_managed_fields: str = _setting(
        "drop",
        "FLUXQUEUE_POD_MANAGED_FIELDS",
        "whether the API server stores metadata.managedFields of released pods of Jobs"
        " (docs/admin/operations.md)",
        choices=("drop", "keep"),
    )
    bind_gangs: str = _setting(
        "pods",
        "FLUXQUEUE_BIND_GANGS",
        "how kube-scheduler binds placed gangs: pod by pod, or all or none, by a PodGroup of"
        " Kubernetes 1.37 (docs/user/groups.md)",
        choices=("pods", "group"),
    )
    # Kubernetes API
    kube_concurrency: int = _setting(
        20, "FLUXQUEUE_KUBE_CONCURRENCY", "API requests at once", low=1, high=500
    )
    kube_timeout_s: float = _setting(
        30.0, "FLUXQUEUE_KUBE_TIMEOUT_S", "longest API request (watches excepted)", low=1, high=600
    )
    # Scheduling
    default_cpu_m: int = _setting(
        1000,
        "FLUXQUEUE_DEFAULT_CPU_M",
        "millicores of a pod without a cpu request",
        low=0,
        high=10**6,
    )
    gather_timeout_s: int = _setting(
        600,
        "FLUXQUEUE_GATHER_TIMEOUT_S",
        "a group with missing pods is reported as overdue after this time, and still waits",
        low=1,
        high=30 * 86400,
    )
    arrival_window_s: float = _setting(
        1.0,
        "FLUXQUEUE_ARRIVAL_WINDOW_S",
        "an owner without a pod count starts with the pods that came before a pause of this length",
        low=0.05,
        high=600,
    )
    owner_kinds: str = _setting(
        "",
        "FLUXQUEUE_OWNER_KINDS",
        "further kinds that create pods, as a JSON list (docs/user/groups.md)",
    )
    aliases: str = _setting(
        "kueue",
        "FLUXQUEUE_ALIASES",
        "labels and annotations that stand for those of fluxqueue: kueue, ALIAS=KEY,... or none"
        " (docs/user/kueue.md)",
    )
    queue_names: str = _setting(
        "",
        "FLUXQUEUE_QUEUE_NAMES",
        "FluxQueues of the names in aliases: LOCALQUEUE=FLUXQUEUE,... (docs/user/kueue.md)",
    )
    gated_namespaces: str = _setting(
        "",
        "FLUXQUEUE_GATED_NAMESPACES",
        "namespaces in which Jobs wait with gated pods, with commas (docs/user/run.md)",
    )
    gated_queues: str = _setting(
        "",
        "FLUXQUEUE_GATED_QUEUES",
        "FluxQueues in which Jobs wait with gated pods, with commas (docs/user/run.md)",
    )
    kueue_suspension: str = _setting(
        "queue",
        "FLUXQUEUE_KUEUE_SUSPENSION",
        "what resumes an object that is created suspended with Kueue's label: queue, or author"
        " where Kueue itself is installed",
        choices=("queue", "author"),
    )
    controllers: str = _setting(
        ",".join(CLUSTER_CONTROLLERS),
        "FLUXQUEUE_CONTROLLERS",
        "accounts of the cluster's own controllers, which hand on the submitter of a template",
    )
    submitter_accounts: str = _setting(
        "",
        "FLUXQUEUE_SUBMITTER_ACCOUNTS",
        "accounts of GitOps tools, with commas; what they make counts for the user that it names",
    )
    submitter_annotation: str = _setting(
        "fluxqueue/submitter",
        "FLUXQUEUE_SUBMITTER_ANNOTATION",
        "key of the annotation in which these accounts name that user",
    )
    queue_policy: str = _setting(
        "easy",
        "FLUXQUEUE_QUEUE_POLICY",
        "which job is next",
        choices=("fcfs", "easy", "hybrid", "conservative"),
    )
    default_duration_s: int = _setting(
        3600,
        "FLUXQUEUE_DEFAULT_DURATION_S",
        "planned for jobs without a duration in queues without defaultDuration",
        low=1,
        high=2**31 - 1,
    )
    match_policy: str = _setting(
        MATCH_POLICY,
        "FLUXQUEUE_MATCH_POLICY",
        "order in which nodes are filled",
        choices=(
            "first",
            "firstnodex",
            "lonode",
            "hinode",
            "lonodex",
            "hinodex",
            "pack",
            "spread",
        ),
    )
    levels: str = _setting(
        "region,zone,block,rack,nvlink",
        "FLUXQUEUE_LEVELS",
        "levels between cluster and node, top first, with their node labels: NAME=LABEL,..., or the"
        " name of a default (none: no levels, docs/admin/levels.md)",
    )
    unschedulable_s: float = _setting(
        5.0,
        "FLUXQUEUE_UNSCHEDULABLE_S",
        "a released pod that kube-scheduler cannot bind for so long is given another node",
        low=1,
        high=3600,
    )
    start_timeout_s: int = _setting(
        300,
        "FLUXQUEUE_START_TIMEOUT_S",
        "a workload with pods that are not created after this time goes back to the queue (0:"
        " never; queues and annotations set their own, docs/admin/starting.md)",
        low=0,
        high=30 * 86400,
    )
    start_tries: int = _setting(
        5,
        "FLUXQUEUE_START_TRIES",
        "a workload that did not start after so many tries is held",
        low=1,
        high=1000,
    )
    protect_nodes: str = _setting(
        "gangs",
        "FLUXQUEUE_PROTECT_NODES",
        "which nodes autoscalers must leave alone, where pools or an autoscaler are known"
        " (docs/admin/node-pools.md)",
        choices=("never", "waiting", "gangs", "running"),
    )
    follow_pools: bool = _setting(
        True,
        "FLUXQUEUE_FOLLOW_POOLS",
        "discovered node pools follow their sources (docs/admin/node-pools.md)",
    )
    fair_share_interval_s: float = _setting(
        60.0,
        "FLUXQUEUE_FAIR_SHARE_INTERVAL_S",
        "interval between two computations of fair shares",
        low=1,
        high=86400,
    )
    queue_depth: int = _setting(
        1000,
        "FLUXQUEUE_QUEUE_DEPTH",
        "FluxJobs of each queue that one cycle examines",
        low=1,
        high=10**6,
    )
    forecast_interval_s: float = _setting(
        5.0,
        "FLUXQUEUE_FORECAST_INTERVAL_S",
        "least time between two computations of expected starts",
        low=0,
        high=3600,
    )
    forecast_depth: int = _setting(
        1000,
        "FLUXQUEUE_FORECAST_DEPTH",
        "FluxJobs of each queue that get an expected start (0: only reserved ones)",
        low=0,
        high=10**5,
    )

    reviews_per_minute: int = _setting(
        30,
        "FLUXQUEUE_REVIEWS_PER_MINUTE",
        "PlacementReviews answered per minute to one user (to all users: ten times as many)",
        low=1,
        high=10**4,
    )
    review_keep_s: int = _setting(
        600,
        "FLUXQUEUE_REVIEW_KEEP_S",
        "age at which PlacementReviews are deleted",
        low=10,
        high=86400,
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read all variables. An empty one counts as unset.

        Raises
        ------
        InvalidSettings
            The error names the variable, the value and what is allowed. A name that is almost one
            of ours is refused too, because a misspelt variable would otherwise have no effect
            unnoticed.
        """
        values: dict[str, Any] = {}
        for one in fields(cls):
            variable: _Variable = one.metadata["variable"]
            if text := environ.get(variable.name, ""):
                values[one.name] = variable.parse(text, type(one.default))
        _refuse_misspelt(environ, {one.metadata["variable"].name for one in fields(cls)})
        return cls(**values)

    @property
    def drops_managed_fields(self) -> bool:
        """Return whether released pods of Jobs are stored without the owners of their fields."""
        return self.pod_managed_fields == "drop"

    @property
    def binds_groups(self) -> bool:
        """Return whether placed gangs start in a PodGroup of Kubernetes, where it has those."""
        return self.bind_gangs == "group"

    def __post_init__(self) -> None:
        """Refuse combinations that cannot work."""
        if self.lease_renew_s * 2 > self.lease_duration_s:
            raise InvalidSettings(
                f"{self.lease_renew_s:g} is more than half of FLUXQUEUE_LEASE_DURATION_S "
                f"({self.lease_duration_s:g})",
                where="FLUXQUEUE_LEASE_RENEW_S",
                value=self.lease_renew_s,
                hint="a single failed renewal must not cost the leadership",
            )


_NEAR = 0.9
"""Similarity (difflib) from which an unknown name counts as a misspelt one."""


def _refuse_misspelt(environ: Mapping[str, str], known: set[str]) -> None:
    # Not every unknown FLUXQUEUE_... may be refused: Kubernetes itself sets variables such as
    # FLUXQUEUE_WEBHOOK_SERVICE_HOST in every container beside a Service of that name.
    for name in environ:
        if name.startswith("FLUXQUEUE_") and name not in known:
            meant = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_NEAR)
            if meant:
                raise InvalidSettings(
                    "no such setting",
                    where=name,
                    value=environ[name],
                    hint=f"did you mean {meant[0]}?",
                )


def describe() -> str:
    """Return all variables as a Markdown table."""
    rows = ["| Variable | Default | Allowed | Meaning |", "|---|---|---|---|"]
    for one in fields(Settings):
        variable: _Variable = one.metadata["variable"]
        default = str(one.default).lower() if isinstance(one.default, bool) else str(one.default)
        allowed = "true, false" if isinstance(one.default, bool) else variable.allowed
        rows.append(f"| `{variable.name}` | {default or '–'} | {allowed} | {variable.help} |")
    return "\n".join(rows)
