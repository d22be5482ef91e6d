"""How a new workload comes to wait: what admission makes of it, and the warnings. Pure.

The webhook's rules call it, once for each workload. The entry of the kind knows how a workload of
that kind is held (``WorkloadKind.held``).
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InvalidInput, TooComplex
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.workload import labels
from fluxqueue.workload.aliases import DEFAULT_ALIASES, KUEUE_QUEUE, Aliases, Translated
from fluxqueue.workload.annotations import Wishes, said_on
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.gates import MARKS, NOTES, TEMPLATE, asking
from fluxqueue.workload.groups import is_possible_owner, read_membership
from fluxqueue.workload.json_patch import at, edited
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKinds
from fluxqueue.workload.pods import controller_owner, gate_index, template_spec
from fluxqueue.workload.shape import check_levels
from fluxqueue.workload.site import Site
from fluxqueue.workload.submitter import Submitters

_DEFAULT_QUEUE = "default"


@dataclass(frozen=True, slots=True)
class AdmitSettings:
    """Hold the settings of admission, which are fixed at its start.

    ``never_managed``: the namespaces of the system and of fluxqueue.
    ``levels``: the levels of the cluster.
    ``own_users``: the accounts of fluxqueue's other components. Only these write what a FluxJob
    requests.
    ``owner_kinds``: the further kinds that make pods.
    ``submitters``: the accounts that submit on behalf of a user.
    ``aliases``: the keys of other systems that stand for those of fluxqueue.
    ``shared_users``: the accounts that fluxqueue's components share with a person
    (``fluxqueue up``).
    ``gated_namespaces``, ``gated_queues``: where Jobs wait with gated pods if they do not say how.
    ``takes_kueue_suspension``: what is created suspended with Kueue's label waits for the queue.
    Otherwise it waits for its author, or for Kueue itself.
    ``placement_key``: shared with the workers (``index_placement``). Empty: no pod is placed here.
    """

    never_managed: Set[str] = labels.NEVER_MANAGED
    levels: Levels = DEFAULT_LEVELS
    own_users: Set[str] = frozenset()
    owner_kinds: OwnerKinds = field(default_factory=OwnerKinds)
    submitters: Submitters = field(default_factory=Submitters)
    aliases: Aliases = DEFAULT_ALIASES
    shared_users: Set[str] = frozenset()
    gated_namespaces: Set[str] = frozenset()
    gated_queues: Set[str] = frozenset()
    takes_kueue_suspension: bool = True
    placement_key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Held:
    """A workload as it waits, as it came (``before``), and what its author must know."""

    before: Object
    workload: Object
    warnings: tuple[str, ...]

    def stored_as(self, obj: Object) -> Object:
        """Return the API object ``obj`` with what waiting changes, without the form of its kind."""
        made = {k: v for k, v in self.workload.items() if v is not self.before.get(k)}
        return {**obj, **made}


def why_untouched(
    kind: WorkloadKind,
    workload: Object,
    *,
    namespace: str,
    never_managed: Set[str] = labels.NEVER_MANAGED,
) -> str | None:
    """Return why a new object must not be managed, or None if it must.

    The webhook configuration keeps most other objects away before admission is called, but nothing
    here relies on that. Pods of a BatchJob inherit from their template, so they need no admission
    of their own.

    Parameters: ``namespace`` is the request's (an object under admission may lack its own).
    ``never_managed`` are the namespaces of the system and of fluxqueue.
    """
    meta = workload.get("metadata") or {}
    if namespace in never_managed:
        return f"namespace {namespace} is never managed"
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if at(workload, (*MARKS, labels.MANAGED)) == "false":
        return f'label {labels.MANAGED} is "false"'
    if not kind.pod_spec(workload):
        return "it has no pod spec, so the API server will refuse it"
    return kind.why_not(workload)


def hold(
    kind: WorkloadKind,
    workload: Object,
    said: Translated,
    settings: AdmitSettings,
    requester: str,
) -> Held:
    """Hold a workload that its kind does not exclude.

    ``said``: its aliases. ``requester``: the account that creates it, as the API server
    authenticated it.

    Raises
    ------
    InvalidInput
        It cannot be read, or could not be stored or decided. The error is in words of its author.
    """
    is_suspended = kind.is_suspended(workload)
    is_for_queue = (
        settings.takes_kueue_suspension
        and bool(at(workload, (*MARKS, KUEUE_QUEUE)))
        and is_suspended
    )
    try:
        wishes = _read(kind, workload, settings.levels)
        user = settings.submitters.submitter(requester, workload)
        held = kind.held(workload, replace(wishes, is_suspended_for_queue=is_for_queue), user)
    except InvalidInput as error:
        raise said.in_words_of_author(error) from None
    warnings = [*_warnings(kind, workload, wishes, said)]
    if is_suspended and not is_for_queue:
        warnings += _warnings_of_suspension(kind, workload)
    return Held(workload, held, tuple(warnings))


def mark(workload: Object, levels: Levels) -> Held:
    """Mark the pods of an object that waits suspended in the place of its maker.

    Raises
    ------
    InvalidInput
        It cannot be read, or could not be stored or decided.
    """
    wishes = _read(SUSPENDED_OWNER, workload, levels)
    warnings = _warnings(SUSPENDED_OWNER, workload, wishes, Translated(workload))
    return Held(workload, SUSPENDED_OWNER.marked(workload), tuple(warnings))


def _read(kind: WorkloadKind, workload: Object, levels: Levels) -> Wishes:
    """Read the wishes, and refuse requests that are invalid only as a whole.

    These are wishes and pods that do not fit together, and a request that could not be stored or
    decided. Errors in the pods alone are left to the API server, because its message is better.
    """
    wishes = kind.wishes(workload)
    check_levels(wishes, levels)
    try:
        kind.to_request(workload, site=Site(levels=levels))
    except TooComplex:
        raise
    except InvalidInput:
        if wishes.has_shape:
            raise
    return wishes


def with_wait(workload: Object, settings: AdmitSettings, namespace: str) -> Object:
    """Return a Job that says it waits with gated pods if template, namespace or queue says so.

    The policies of the API server read it there. A member of a group is left as it is.
    """
    place = (*NOTES, labels.WAIT)
    if at(workload, place) or _is_member(workload):
        return workload
    said = said_on(workload, labels.WAIT)
    queue = at(workload, (*MARKS, labels.QUEUE)) or _DEFAULT_QUEUE
    is_default = namespace in settings.gated_namespaces or queue in settings.gated_queues
    is_gated = said == labels.GATED or (said is None and is_default)
    return edited(workload, {place: labels.GATED}) if is_gated else workload


def _is_member(workload: Object) -> bool:
    """Tell whether a workload names a group. One with an invalid name is refused later."""
    try:
        return read_membership(workload) is not None
    except InvalidInput:
        return True


def asking_if_made(workload: Object) -> Object:
    """Return a workload that a controller made and that asks to be queued, unless it opts out.

    This applies to namespaces where sets are managed.
    """
    owner, spec = controller_owner(workload), workload.get("spec") or {}
    is_held = gate_index(template_spec(spec)) is not None
    if owner is None or is_held or not is_possible_owner(owner):
        return workload
    return asking(workload, (*(TEMPLATE if "template" in spec else ()), *MARKS))


def _warnings(
    kind: WorkloadKind, workload: Object, wishes: Wishes, said: Translated
) -> Iterator[str]:
    deadline_s = at(workload, ("spec", "activeDeadlineSeconds"))
    if wishes.duration_s is not None and deadline_s not in {None, wishes.duration_s}:
        yield (
            f"{labels.DURATION} ({wishes.duration_s} s) is not used: "
            f"spec.activeDeadlineSeconds ({deadline_s}) wins"
        )
    if wishes.waits_gated and kind is BATCH_JOB:
        yield "its pods exist while it waits, gated; a requeue ends them and makes others"
        if deadline_s is not None:
            yield (
                f"spec.activeDeadlineSeconds ({deadline_s}) counts while it waits; "
                "set it in the pod template instead"
            )
    if left_out := ignored(kind.pod_spec(workload)):
        yield f"not considered when nodes are chosen: {', '.join(left_out)}"
    if said.left_out:
        yield f"without a meaning here: {', '.join(said.left_out)}"


def _warnings_of_suspension(kind: WorkloadKind, workload: Object) -> Iterator[str]:
    """Say what an object waits for that its author has created suspended."""
    if kind.is_held(workload) or at(workload, (*NOTES, labels.SUSPENDED)) == "true":
        return
    path = workload["entry"].suspend if kind is SUSPENDED_OWNER else "spec.suspend"
    yield (
        f"it is created suspended, so it is held until its author sets {path} to false. "
        "It then waits in the queue. Leave the field out to queue it at once"
    )
