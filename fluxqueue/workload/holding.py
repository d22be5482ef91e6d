"""How a new workload comes to wait: what admission makes of it, and the warnings. Pure.

The webhook's rules call it, once for each workload. The entry of the kind knows how a workload of
that kind is held (``AdmittedKind.held``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import InvalidInput, TooComplex
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels, parse_levels
from fluxqueue.process.shared_key import read_key
from fluxqueue.workload import labels
from fluxqueue.workload.aliases import (
    DEFAULT_ALIASES,
    KUEUE_QUEUE,
    NOTHING_SAID,
    Aliases,
    Translated,
    parse_aliases,
)
from fluxqueue.workload.annotations import Wishes, said_on
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.gates import MARKS, NOTES, TEMPLATE, asking
from fluxqueue.workload.groups import is_possible_owner, read_membership
from fluxqueue.workload.json_patch import at, edited
from fluxqueue.workload.kinds.admitted import JOB, OWNER, AdmittedKind, assemble_owner
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds
from fluxqueue.workload.pod_request import check_levels
from fluxqueue.workload.pods import controller_owner, gate_index, template_spec
from fluxqueue.workload.site import Site
from fluxqueue.workload.submitter import Submitters, parse_submitters, split_names
from fluxqueue.workload.suspension import with_asking_pods, with_stamps_of

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

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> AdmitSettings:
        """Read the options of the webhook, by name.

        Raises
        ------
        InvalidSettings
            One of them cannot be used.
        """
        owner_kinds = OwnerKinds()
        if said["owner_kinds"].strip():
            from fluxqueue.workload.owner_kind_settings import parse_owner_kinds

            owner_kinds = parse_owner_kinds(said["owner_kinds"], "--owner-kinds")
        return cls(
            never_managed=labels.SYSTEM_NAMESPACES | {said["own_namespace"]},
            levels=parse_levels(said["levels"], "--levels"),
            own_users=frozenset(said["own_user"]),
            shared_users=frozenset(said["shared_user"]),
            owner_kinds=owner_kinds,
            submitters=parse_submitters(
                controllers=said["controllers"],
                accounts=said["submitter_accounts"],
                annotation=said["submitter_annotation"],
            ),
            aliases=parse_aliases(said["aliases"], said["queue_names"], "--aliases"),
            gated_namespaces=split_names(said["gated_namespaces"]),
            gated_queues=split_names(said["gated_queues"]),
            takes_kueue_suspension=said["kueue_suspension"] == "queue",
            placement_key=read_key(said["placement_key_file"], "--placement-key-file"),
        )


DEFAULT_SETTINGS = AdmitSettings()


@dataclass(frozen=True, slots=True)
class Held:
    """An object as it is wanted while it waits, and what its author must know."""

    wanted: Object
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """What admission asks of an object that makes pods, of the kind ``entry``.

    ``workload`` and ``old``: its forms now, and before this update. ``is_made``: a controller made
    it. ``is_told``: the templates of its maker are in it.
    """

    entry: OwnerKind
    workload: Object
    old: Object
    is_made: bool
    is_told: bool

    @property
    def can_wait(self) -> bool:
        """Tell whether it can be suspended."""
        return OWNER.why_not(self.workload) is None

    @property
    def is_late(self) -> bool:
        """Tell whether it asks only now, and its author has suspended it so far."""
        is_new = at(self.old, (*MARKS, labels.MANAGED)) != "true"
        return is_new and OWNER.is_suspended(self.workload)

    @property
    def waits(self) -> bool:
        """Tell whether it is suspended, or was so before this update."""
        return any(map(OWNER.is_suspended, (self.workload, self.old)))

    def guarded(self, wanted: Object) -> Object:
        """Undo edits of annotations that only admission may write."""
        return with_stamps_of(self.old, wanted) if self.entry.suspend else wanted

    def asking(self, wanted: Object) -> Object:
        """Return the object with pods that ask to be queued."""
        return with_asking_pods(self.guarded(wanted), self.entry)

    def held(self, wanted: Object, said: Translated, settings: AdmitSettings, user: str) -> Held:
        """Suspend the object, as ``hold`` does."""
        return hold(OWNER, wanted, said, settings, user, self.entry)

    def marked(self, wanted: Object, levels: Levels) -> Held:
        """Mark the pods of an object that waits suspended in the place of its maker.

        Raises
        ------
        InvalidInput
            It cannot be read, or could not be stored or decided.
        """
        obj = self.guarded(wanted)
        workload = _form(OWNER, obj, self.entry)
        wishes = _read(OWNER, workload, levels)
        marked = _stored(obj, workload, OWNER.marked(workload))
        return Held(marked, tuple(_warnings(OWNER, workload, wishes, NOTHING_SAID)))


def look_at_owner(entry: OwnerKind, owner: Object, old: Object, kinds: OwnerKinds) -> OwnerFacts:
    """Return the facts of an object that makes pods. ``old`` is empty at its creation."""
    maker = controller_owner(owner)
    above = None if maker is None else kinds.of_reference(maker)
    is_told = above is not None and above.templates_in == (entry.group, entry.kind)
    now, before = (_form(OWNER, one, entry) for one in (owner, old))
    return OwnerFacts(entry, now, before, maker is not None, is_told)


def _form(kind: AdmittedKind, obj: Object, entry: OwnerKind | None) -> Object:
    """Return an object in the form of its kind."""
    if entry is None:
        return {**obj, "kind": kind.name}
    return assemble_owner(obj, entry, str(obj.get("apiVersion") or ""))


def _stored(obj: Object, before: Object, after: Object) -> Object:
    """Return an object with what differs in the form of its kind."""
    return {**obj, **{key: value for key, value in after.items() if value is not before.get(key)}}


def why_untouched(
    kind: AdmittedKind,
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
    kind: AdmittedKind,
    obj: Object,
    said: Translated,
    settings: AdmitSettings,
    requester: str,
    entry: OwnerKind | None = None,
) -> Held:
    """Hold a workload that its kind does not exclude.

    ``said``: its aliases. ``requester``: the account that creates it, as the API server
    authenticated it. ``entry``: its kind, if it makes pods and waits suspended.

    Raises
    ------
    InvalidInput
        It cannot be read, or could not be stored or decided. The error is in words of its author.
    """
    workload = _form(kind, obj, entry)
    is_suspended = kind.is_suspended(workload)
    of_kueue = settings.takes_kueue_suspension and at(workload, (*MARKS, KUEUE_QUEUE))
    is_for_queue = is_suspended and bool(of_kueue)
    try:
        wishes = _read(kind, workload, settings.levels)
        user = settings.submitters.submitter(requester, workload)
        held = kind.held(workload, replace(wishes, is_suspended_for_queue=is_for_queue), user)
    except InvalidInput as error:
        raise said.in_words_of_author(error) from None
    warnings = [*_warnings(kind, workload, wishes, said)]
    if is_suspended and not is_for_queue:
        warnings += _warnings_of_suspension(kind, workload)
    return Held(_stored(obj, workload, held), tuple(warnings))


def _read(kind: AdmittedKind, workload: Object, levels: Levels) -> Wishes:
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
    kind: AdmittedKind, workload: Object, wishes: Wishes, said: Translated
) -> Iterator[str]:
    deadline_s = at(workload, ("spec", "activeDeadlineSeconds"))
    if wishes.duration_s is not None and deadline_s not in {None, wishes.duration_s}:
        yield (
            f"{labels.DURATION} ({wishes.duration_s} s) is not used: "
            f"spec.activeDeadlineSeconds ({deadline_s}) wins"
        )
    if wishes.waits_gated and kind is JOB:
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


def _warnings_of_suspension(kind: AdmittedKind, workload: Object) -> Iterator[str]:
    """Say what an object waits for that its author has created suspended."""
    if kind.is_held(workload) or at(workload, (*NOTES, labels.SUSPENDED)) == "true":
        return
    path = workload["entry"].suspend if kind is OWNER else "spec.suspend"
    yield (
        f"it is created suspended, so it is held until its author sets {path} to false. "
        "It then waits in the queue. Leave the field out to queue it at once"
    )
