"""Admission as a function: an AdmissionReview in, an AdmissionReview out.

Called by ``fluxqueue_webhook.server`` for each request. It has no state, no clock and no client. An
answer depends on the review and the settings alone, so dry runs and repetitions are harmless. The
answer for a pod with a placement also depends on the time, which is an argument.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from fluxqueue.errors import InvalidInput, TooComplex
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.workload import labels
from fluxqueue.workload.aliases import DEFAULT_ALIASES, KUEUE_QUEUE, Aliases, Translated
from fluxqueue.workload.annotations import Wishes, said_on
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.fluxjob_object import FIELD_MANAGER
from fluxqueue.workload.fluxjob_object import GROUP as FLUXJOB_GROUP
from fluxqueue.workload.fluxjob_object import KIND as FLUXJOB_KIND
from fluxqueue.workload.gates import opt_in_patch, repin_patch, replace_legacy_scheduler
from fluxqueue.workload.groups import is_possible_owner, read_membership
from fluxqueue.workload.index_placement import place_pod_patch
from fluxqueue.workload.json_patch import Patch, at, put
from fluxqueue.workload.kinds import find_kind, kind_of
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER, assemble_owner
from fluxqueue.workload.managed import NEVER_MANAGED, why_untouched
from fluxqueue.workload.object_shape import (
    METADATA_ONLY,
    REQUEST,
    SHAPES,
    check_owner,
    check_shape,
    check_size,
)
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds, is_suspended, labels_paths
from fluxqueue.workload.placement_review import ASKER, read_asker, read_review
from fluxqueue.workload.placement_review import GROUP as REVIEW_GROUP
from fluxqueue.workload.placement_review import KIND as REVIEW_KIND
from fluxqueue.workload.pods import controller_owner, gate_index, template_spec
from fluxqueue.workload.shape import check_levels
from fluxqueue.workload.site import Site
from fluxqueue.workload.steered import STEERED_BY, changes_by_hand
from fluxqueue.workload.submitter import STAMPED, StampedKind, Submitters, stamp_templates
from fluxqueue.workload.suspension import guard_stamps, hand_on, without_stamps

_MAX_WARNING = 240
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

    never_managed: Set[str] = NEVER_MANAGED
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
class AdmissionAnswer:
    """Hold the AdmissionReview to send back, and its verdict for logs and metrics.

    ``verdict`` is ``taken``, ``placed``, ``untouched`` or ``refused``. ``why`` is the reason.
    """

    review: dict[str, Any]
    verdict: str
    kind: str
    why: str = ""


def admit(
    review: Mapping[str, Any],
    settings: AdmitSettings | None = None,
    *,
    all_ask: bool = False,
) -> AdmissionAnswer:
    """Answer an AdmissionReview.

    ``all_ask``: the request comes from a namespace where pods that a controller makes are queued.

    Raises
    ------
    InvalidInput
        ``review`` is not an admission.k8s.io/v1 AdmissionReview with a request.
    """
    request = _read_request(review)
    uid, kind = request["uid"], _group_kind(request)[1]
    settings = settings or AdmitSettings()
    # The types come first: the code below reads fields of custom resources without checks.
    try:
        _check_objects(request, settings)
    except InvalidInput as error:
        named = request.get("name") or ""
        described = {"group": _group_kind(request)[0], "kind": kind, "name": named}
        return AdmissionAnswer(_refuse(uid, described, error), "refused", kind, str(error))
    if _group_kind(request) == (FLUXJOB_GROUP, FLUXJOB_KIND):
        return _steer(request, settings)
    if _group_kind(request) == (REVIEW_GROUP, REVIEW_KIND):
        return _take_question(request, settings)
    if (kept := _keep_applied(request, settings)) is not None:
        return kept
    # Before all that reads labels and annotations: an alias may have an object ask to be queued.
    said = _translate(request, settings)
    workload = None if said is None else said.obj
    # Before the workloads: pods and Jobs depend on what their owner was given here.
    entry = settings.owner_kinds.find(*_group_kind(request))
    stamped = STAMPED.get(_group_kind(request))
    if said is not None and (entry is not None or stamped is not None):
        return _take_maker(entry, stamped, request, settings, said, all_ask=all_ask)
    why = _why_not_asked(request, workload)
    asked: Patch = [] if said is None else said.patch
    if why is None:
        assert workload is not None
        # Before the check for reasons: the label that is added here decides there.
        if all_ask:
            workload, more = _have_it_ask(workload)
            asked = [*asked, *more]
        namespace = request.get("namespace") or ""
        why = why_untouched(
            {**workload, "kind": kind}, namespace=namespace, never_managed=settings.never_managed
        )
    if why is not None:
        review = _respond(uid, allowed=True)
        # Without this, a pod that names a predecessor's scheduler would never be placed.
        if find_kind(*_group_kind(request)) is BARE_POD and workload is not None:
            _add_patch(review, replace_legacy_scheduler(workload))
        return AdmissionAnswer(review, "untouched", kind, why)
    assert said is not None
    assert workload is not None
    return _hold({**workload, "kind": kind}, request, settings, asked, said)


def _translate(request: Mapping[str, Any], settings: AdmitSettings) -> Translated | None:
    """Return the request's object with fluxqueue's keys beside the aliases. None without one."""
    obj, namespace = request.get("object"), request.get("namespace") or ""
    if not isinstance(obj, dict):
        return None
    # An object that was stored before, and was not queued then, is not queued by an edit.
    old = at(request.get("oldObject") or {}, ("metadata", "labels", labels.MANAGED))
    is_edit = request.get("operation") == "UPDATE" and old == "true"
    is_written = (_is_creation(request) or is_edit) and not request.get("subResource")
    if not is_written or namespace in settings.never_managed:
        return Translated(obj)
    return settings.aliases.translate(obj, namespace)


def place(review: Mapping[str, Any], settings: AdmitSettings, *, now_s: float) -> AdmissionAnswer:
    """Answer for a new pod with a placement: release it to its node, or let it come gated.

    The API server asks this for nothing else (``configuration``). Such a pod is never refused,
    because it can come gated. The types of a Pod were checked by the API server.

    Parameters
    ----------
    now_s : epoch seconds.

    Raises
    ------
    InvalidInput
        ``review`` is not an admission.k8s.io/v1 AdmissionReview with a request.
    """
    request = _read_request(review)
    pod = request.get("object")
    is_pod = find_kind(*_group_kind(request)) is BARE_POD and isinstance(pod, dict)
    if not is_pod or not _is_creation(request) or request.get("subResource"):
        return leave_gated(review, "only pods are placed, when they are created")
    assert isinstance(pod, dict)
    patch = place_pod_patch(
        pod,
        BATCH_JOB.claim(pod),
        requester=_user(request),
        controllers=settings.submitters.controllers,
        key=settings.placement_key,
        now_s=now_s,
    )
    if not patch:
        return leave_gated(review, "its placement does not hold")
    answer = _respond(request["uid"], allowed=True)
    _add_patch(answer, patch)
    return AdmissionAnswer(answer, "placed", BARE_POD.name)


def leave_gated(review: Any, why: str) -> AdmissionAnswer:
    """Allow a pod with a placement as it is. The worker ungates it.

    Raises
    ------
    InvalidInput
        Not even the envelope of the request can be read.
    """
    request = _read_request(review)
    return AdmissionAnswer(_respond(request["uid"], allowed=True), "untouched", BARE_POD.name, why)


def _take_maker(
    entry: OwnerKind | None,
    stamped: StampedKind | None,
    request: Mapping[str, Any],
    settings: AdmitSettings,
    said: Translated,
    *,
    all_ask: bool,
) -> AdmissionAnswer:
    """Answer for an object that makes pods or Jobs.

    The submitter comes first, then the label by which its pods opt in.
    """
    owner, stamps = said.obj, said.patch
    is_looked_at = request.get("operation") in {"CREATE", "UPDATE"}
    is_ours = (request.get("namespace") or "") not in settings.never_managed
    if stamped is not None and is_looked_at and is_ours and not request.get("subResource"):
        requester = _user(request)
        old = None if _is_creation(request) else request.get("oldObject") or {}
        # Before the patch of the owner: that patch must apply to the stamped templates.
        try:
            owner, more = stamp_templates(owner, old, stamped, requester, settings.submitters)
            stamps = [*stamps, *more]
        except InvalidInput as error:
            group, kind = _group_kind(request)
            described = {"group": group, "kind": kind, "name": request.get("name") or ""}
            return AdmissionAnswer(
                _refuse(request["uid"], described, error), "refused", kind, str(error)
            )
    if entry is not None:
        return _take_owner(entry, owner, request, settings, stamps, said, all_ask=all_ask)
    review = _respond(request["uid"], allowed=True)
    _add_patch(review, stamps)
    why = "what it makes is looked at" if stamps else "its submitter is known"
    return AdmissionAnswer(review, "untouched", _group_kind(request)[1], why)


def _check_objects(request: Mapping[str, Any], settings: AdmitSettings) -> None:
    """Check the types of all fields that are read below. Custom resources arrive unchecked.

    Raises
    ------
    InvalidInput
        A field has a value of another type. The error names the field, the value and what it must
        be.
    """
    group_kind = _group_kind(request)
    entry = settings.owner_kinds.find(*group_kind)
    shape = SHAPES.get(group_kind) or (METADATA_ONLY if entry is not None else None)
    if shape is None:
        return
    for name, where in (("object", ""), ("oldObject", "oldObject")):
        obj = request.get(name)
        # The size comes first: it bounds the cost of the checks after it.
        check_size(obj, where)
        check_shape(obj, shape, where)
        if obj is not None and obj.get("metadata") is None:
            at = f"{where}.metadata" if where else "metadata"
            raise InvalidInput("must be an object", where=at, hint="name the object there")
        asks = (((obj or {}).get("metadata") or {}).get("labels") or {}).get(labels.MANAGED)
        if entry is not None and obj is not None and asks == "true":
            check_owner(entry, obj, where)


def _take_owner(
    entry: OwnerKind,
    owner: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: AdmitSettings,
    stamps: Patch,
    translated: Translated,
    *,
    all_ask: bool,
) -> AdmissionAnswer:
    """Answer for an object that makes pods: suspend it if it can be, else gate its pods.

    ``stamps``: the patch that turns the request's object into ``owner``. ``translated``: its
    aliases, for messages.
    """
    meta = owner.get("metadata") or {}
    said = (meta.get("labels") or {}).get(labels.MANAGED)
    asked, why = said or ("true" if all_ask else None), ""
    maker, is_new = controller_owner({"metadata": meta}), _is_creation(request)
    is_made, is_told = maker is not None, _tells_of(maker, entry, settings.owner_kinds)
    has_updates = entry.is_late or bool(entry.suspend)
    is_unseen = request.get("operation") not in entry.operations or request.get("subResource")
    if is_unseen or not (is_new or has_updates):
        why = "only creation is looked at"
    elif asked != "true":
        why = f'label {labels.MANAGED} is not "true"'
    elif (request.get("namespace") or "") in settings.never_managed:
        why = f"namespace {request['namespace']} is never managed"
    elif is_made and (said is None or entry.is_late or not (is_new or is_told)):
        why = "what made it speaks for its pods"
    if why:
        review = _respond(request["uid"], allowed=True)
        # Unmanaged objects are guarded, too: otherwise an edit could forge our annotations.
        _add_patch(review, [*stamps, *_guard(entry, owner, request)])
        return AdmissionAnswer(review, "untouched", entry.kind, why)
    workload = assemble_owner(owner, entry, str(owner.get("apiVersion") or ""))
    if is_told:
        return _mark_told(workload, request, settings, stamps)
    if is_made:
        return _have_pods_ask(entry, owner, request, stamps)
    # Its pods exist by then. Suspending it would end them.
    is_begun = not is_new and not _is_late(workload, request)
    if not is_begun and SUSPENDED_OWNER.why_not(workload) is None:
        # This object opts in by an update, so any admission-owned annotations on it were written by
        # the user. Drop them.
        undo = [] if is_new else _guard(entry, owner, request)
        workload = {**workload, "metadata": without_stamps(meta)} if undo else workload
        return _hold(workload, request, settings, [*stamps, *undo], translated)
    if is_begun and entry.suspend:
        review = _respond(request["uid"], allowed=True)
        _add_patch(review, [*stamps, *_guard(entry, owner, request)])
        return AdmissionAnswer(review, "untouched", entry.kind, "it was looked at when it was made")
    return _have_pods_ask(entry, owner, request, stamps)


def _tells_of(maker: Mapping[str, Any] | None, entry: OwnerKind, kinds: OwnerKinds) -> bool:
    """Return whether the templates of its maker are in an object of this kind."""
    if maker is None:
        return False
    above = kinds.find(maker["apiVersion"].rpartition("/")[0], maker["kind"])
    return above is not None and above.templates_in == (entry.group, entry.kind)


def _mark_told(
    workload: Mapping[str, Any], request: Mapping[str, Any], settings: AdmitSettings, before: Patch
) -> AdmissionAnswer:
    """Mark an object, while its maker is suspended in its place.

    Its pods opt in, and name the kind of slots that they need. Once the object is resumed it is no
    longer changed, because its pods exist. ``before``: operations that come first in the patch.
    """
    entry, old = workload["entry"], request.get("oldObject") or {}
    # Both are asked: the update that resumes the object is the last one that may mark it.
    waits = is_suspended(entry, workload) or is_suspended(entry, old)
    if not _is_creation(request) and not waits:
        why = "it was looked at when it was made"
        review = _respond(request["uid"], allowed=True)
        _add_patch(review, before)
        return AdmissionAnswer(review, "untouched", entry.kind, why)
    undo = _guard(entry, workload, request)
    return _take_in(
        workload,
        request,
        settings,
        lambda _: [*before, *undo, *SUSPENDED_OWNER.mark_patch(workload)],
    )


def _is_creation(request: Mapping[str, Any]) -> bool:
    return request.get("operation") == "CREATE"


def _is_late(workload: Mapping[str, Any], request: Mapping[str, Any]) -> bool:
    """Return whether it opts in only now, and its author has suspended it so far."""
    old = ((request.get("oldObject") or {}).get("metadata") or {}).get("labels") or {}
    return old.get(labels.MANAGED) != "true" and SUSPENDED_OWNER.is_suspended(workload)


def _guard(entry: OwnerKind, owner: Mapping[str, Any], request: Mapping[str, Any]) -> Patch:
    """Return the patch that undoes edits of annotations that only admission may write."""
    old = request.get("oldObject") or {}
    return guard_stamps(old, owner) if entry.suspend else []


def _have_pods_ask(
    entry: OwnerKind, owner: Mapping[str, Any], request: Mapping[str, Any], stamps: Patch
) -> AdmissionAnswer:
    """Have its pods opt in by the label in its templates. ``stamps``: as for ``_take_owner``."""
    review = _respond(request["uid"], allowed=True)
    # The order of a JSON patch counts: each part applies to the result of those before it.
    patch = [*stamps, *_guard(entry, owner, request)]
    queue = ((owner.get("metadata") or {}).get("labels") or {}).get(labels.QUEUE)
    for path in labels_paths(entry, owner):
        owner, more = opt_in_patch(owner, path)
        patch += more
        if queue is not None and labels.QUEUE not in (at(owner, path) or {}):
            changed = copy.deepcopy(dict(owner))
            patch += put(changed, (*path, labels.QUEUE), queue)
            owner = changed
    patch += hand_on(copy.deepcopy(dict(owner)), entry.hands_on)
    _add_patch(review, patch)
    return AdmissionAnswer(review, "taken", entry.kind)


def _have_it_ask(workload: Mapping[str, Any]) -> tuple[Mapping[str, Any], Patch]:
    """Have an object that a controller made opt in, unless it opts out.

    This applies to namespaces where sets are managed.
    """
    owner = controller_owner({"metadata": workload.get("metadata") or {}})
    spec = workload.get("spec") or {}
    is_held = gate_index(template_spec(spec)) is not None
    if owner is None or is_held or not is_possible_owner(owner):
        return workload, []
    template = ("spec", "template") if "template" in spec else ()
    return opt_in_patch(workload, (*template, "metadata", "labels"))


def _steer(request: Mapping[str, Any], settings: AdmitSettings) -> AdmissionAnswer:
    """Answer for a change of a FluxJob: allow what a user may change, and record the user."""
    uid, old, new = request["uid"], request.get("oldObject"), request.get("object")
    if request.get("operation") != "UPDATE" or request.get("subResource"):
        return AdmissionAnswer(
            _respond(uid, allowed=True), "untouched", FLUXJOB_KIND, "nothing is steered"
        )
    if not isinstance(old, dict) or not isinstance(new, dict):
        raise InvalidInput("the request has no object", where="request.object")
    # Before the check for changes: our components also write the fields that a user must not.
    if _is_ours(request, settings):
        return AdmissionAnswer(
            _respond(uid, allowed=True), "untouched", FLUXJOB_KIND, "it is our own"
        )
    try:
        changed = changes_by_hand(old, new)
    except InvalidInput as error:
        described = {
            "group": FLUXJOB_GROUP,
            "kind": FLUXJOB_KIND,
            "name": request.get("name") or "",
        }
        return AdmissionAnswer(_refuse(uid, described, error), "refused", FLUXJOB_KIND, str(error))
    review = _respond(uid, allowed=True)
    # From the old object: otherwise a user could write a false name for an earlier change.
    said = (old.get("spec") or {}).get(STEERED_BY) or {}
    said = {**said, **dict.fromkeys(changed, _user(request))}
    if said != ((new.get("spec") or {}).get(STEERED_BY) or {}):
        _add_patch(review, [{"op": "add", "path": f"/spec/{STEERED_BY}", "value": said}])
    return AdmissionAnswer(review, "taken", FLUXJOB_KIND)


def _keep_applied(request: Mapping[str, Any], settings: AdmitSettings) -> AdmissionAnswer | None:
    """Answer an apply of the manifest of a queued Job, so that it succeeds and changes nothing.

    GitOps tools and Helm apply a manifest again and again. A refusal would fail them, and a resumed
    Job would be suspended again at each sync. None for other requests.
    """
    old, new = request.get("oldObject"), request.get("object")
    is_edit = request.get("operation") == "UPDATE" and not request.get("subResource")
    if not is_edit or find_kind(*_group_kind(request)) is not BATCH_JOB:
        return None
    if not isinstance(old, dict) or not isinstance(new, dict) or _is_ours(request, settings):
        return None
    review, name = _respond(request["uid"], allowed=True), request.get("name") or ""
    if _is_resumed(old, new):
        _add_patch(review, [{"op": "add", "path": "/spec/suspend", "value": True}])
        text = f"fluxqueue: Job {name} waits in the queue and stays suspended until it starts"
        review["response"]["warnings"] = [text[:_MAX_WARNING]]
        return AdmissionAnswer(review, "taken", BATCH_JOB.name)
    if patch := repin_patch(old, new):
        _add_patch(review, patch)
        return AdmissionAnswer(review, "taken", BATCH_JOB.name)
    return None


def _is_resumed(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether an edit would resume a Job that waits in the queue.

    An author may resume a Job that the author suspended, and an operator the Jobs that it makes.
    """
    spec, meta = (old.get(key) for key in ("spec", "metadata"))
    if not isinstance(spec, dict) or not isinstance(meta, dict):
        return False
    was_suspended, is_suspended = (bool(at(one, ("spec", "suspend"))) for one in (old, new))
    if not was_suspended or is_suspended or gate_index(template_spec(spec)) is None:
        return False
    maker = controller_owner({"metadata": meta})
    if maker is not None and maker["kind"] != "CronJob":
        return False
    origin = at(meta, ("annotations", labels.AUTHOR_SUSPENDED))
    # After its first start, a Job without the mark was suspended by a user. A user may resume it.
    return origin == "false" or (origin != "true" and meta.get("generation") == 1)


def _take_question(request: Mapping[str, Any], settings: AdmitSettings) -> AdmissionAnswer:
    """Answer for a question when a job would start: record the requesting user."""
    uid, review = request["uid"], request.get("object")
    if request.get("operation") != "CREATE" or request.get("subResource"):
        return AdmissionAnswer(
            _respond(uid, allowed=True), "untouched", REVIEW_KIND, "only creation counts"
        )
    if not isinstance(review, dict):
        raise InvalidInput("the request has no object", where="request.object")
    meta, spec = review.get("metadata") or {}, review.get("spec") or {}
    try:
        read_review(spec, Site(levels=settings.levels))
    except InvalidInput as error:
        name = meta.get("name") or meta.get("generateName") or ""
        described = {"group": REVIEW_GROUP, "kind": REVIEW_KIND, "name": name}
        return AdmissionAnswer(_refuse(uid, described, error), "refused", REVIEW_KIND, str(error))
    answer = _respond(uid, allowed=True)
    # Always written over what the request says: the answer depends on what this user may read.
    asker = read_asker(request.get("userInfo") or {}).to_json()
    if spec.get(ASKER) != asker:
        _add_patch(answer, [{"op": "add", "path": f"/spec/{ASKER}", "value": asker}])
    return AdmissionAnswer(answer, "taken", REVIEW_KIND)


def _is_ours(request: Mapping[str, Any], settings: AdmitSettings) -> bool:
    """Return whether one of our components made the request.

    The account shows this. If a person shares the account, the field manager shows it. The field
    manager alone is not enough: other accounts could use that name, too, and the user that a
    FluxJob names is read back.
    """
    if _user(request) in settings.own_users:
        return True
    if (settings.own_users or settings.shared_users) and (
        _user(request) not in settings.shared_users
    ):
        return False
    return (request.get("options") or {}).get("fieldManager") == FIELD_MANAGER


def _user(request: Mapping[str, Any]) -> str:
    """Return the requesting user, as the API server names it."""
    return str((request.get("userInfo") or {}).get("username") or "")


def refuse_unread(
    review: Any, why: str, way_out: str = "see docs/admin/security.md"
) -> AdmissionAnswer:
    """Refuse a request that could not be evaluated, and give the reason and the way out.

    Raises
    ------
    InvalidInput
        Not even the envelope of the request can be read.
    """
    request = _read_request(review)
    group, kind = _group_kind(request)
    described = {"group": group, "kind": kind, "name": str(request.get("name") or "")}
    error = InvalidInput(why, where="object", hint=way_out)
    return AdmissionAnswer(_refuse(request["uid"], described, error), "refused", kind, why)


def _read_request(review: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(review, Mapping) or review.get("kind") != "AdmissionReview":
        raise InvalidInput("the body is no AdmissionReview", where="kind")
    if review.get("apiVersion") != "admission.k8s.io/v1":
        raise InvalidInput(
            "only admission.k8s.io/v1 is spoken here",
            where="apiVersion",
            value=review.get("apiVersion"),
        )
    request = review.get("request")
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise InvalidInput("the AdmissionReview has no request with a uid", where="request")
    check_shape(request, REQUEST, "request")
    return {**request, "kind": request.get("kind") or {}}


def _why_not_asked(request: Mapping[str, Any], workload: object) -> str | None:
    if request.get("operation") != "CREATE" or request.get("subResource"):
        return "only creation is looked at"
    group, kind = _group_kind(request)
    if find_kind(group, kind) is None:
        return f"a {kind} is not managed"
    return None if isinstance(workload, dict) else "the request has no object"


def _hold(
    workload: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: AdmitSettings,
    before: Patch,
    translated: Translated,
) -> AdmissionAnswer:
    """Put the workload on hold. ``before``: operations that come first in the patch."""
    kind, submitters = kind_of(workload), settings.submitters
    workload, wait = _with_wait(workload, request, settings)
    before = [*before, *wait]

    is_for_queue = _is_for_queue(workload, settings)

    def patch_for(wishes: Wishes) -> Patch:
        wishes = replace(wishes, is_suspended_for_queue=is_for_queue)
        user = submitters.submitter(_user(request), workload)
        return [*before, *kind.hold_patch(workload, wishes, user)]

    answer = _take_in(workload, request, settings, patch_for, translated)
    if answer.verdict == "taken" and not is_for_queue:
        _warn_of_suspension(answer.review["response"], workload)
    return answer


def _is_for_queue(workload: Mapping[str, Any], settings: AdmitSettings) -> bool:
    """Return whether a suspension by its author asks the queue to resume it, as with Kueue."""
    said = at(workload, ("metadata", "labels", KUEUE_QUEUE))
    return (
        settings.takes_kueue_suspension and bool(said) and kind_of(workload).is_suspended(workload)
    )


def _warn_of_suspension(response: dict[str, Any], workload: Mapping[str, Any]) -> None:
    """Say what an object waits for that its author has created suspended."""
    kind, path = kind_of(workload), "spec.suspend"
    notes = at(workload, ("metadata", "annotations")) or {}
    is_ours = kind.is_held(workload) or notes.get(labels.SUSPENDED) == "true"
    if not kind.can_be_suspended or not kind.is_suspended(workload) or is_ours:
        return
    if kind is SUSPENDED_OWNER:
        path = workload["entry"].suspend
    text = (
        f"fluxqueue: it is created suspended, so it is held until its author sets {path} to false. "
        "It then waits in the queue. Leave the field out to queue it at once"
    )
    response["warnings"] = [*response.get("warnings", ()), text[:_MAX_WARNING]]


def _with_wait(
    workload: Mapping[str, Any], request: Mapping[str, Any], settings: AdmitSettings
) -> tuple[Mapping[str, Any], Patch]:
    """Write on a Job that it waits with gated pods if its template, namespace or queue says so.

    The policies of the API server read it there. A member of a group is left as it is.
    """
    path = ("metadata", "annotations", labels.WAIT)
    if kind_of(workload) is not BATCH_JOB or at(workload, path) or _is_member(workload):
        return workload, []
    said = said_on(workload, labels.WAIT)
    queue = at(workload, ("metadata", "labels", labels.QUEUE)) or _DEFAULT_QUEUE
    is_default = (request.get("namespace") or "") in settings.gated_namespaces
    is_default |= queue in settings.gated_queues
    if said != labels.GATED and (said is not None or not is_default):
        return workload, []
    changed: dict[str, Any] = copy.deepcopy(dict(workload))
    return changed, put(changed, path, labels.GATED)


def _is_member(workload: Mapping[str, Any]) -> bool:
    """Return whether a workload names a group. One with an invalid name is refused later."""
    try:
        return read_membership(workload) is not None
    except InvalidInput:
        return True


def _check_request(workload: Mapping[str, Any], wishes: Wishes, site: Site) -> None:
    """Refuse requests that are invalid only as a whole.

    These are wishes and pods that do not fit together, and a request that could not be stored or
    decided. Errors in the pods alone are left to the API server, because its message is better.
    """
    try:
        kind_of(workload).to_request(workload, site=site)
    except TooComplex:
        raise
    except InvalidInput:
        if wishes.has_shape:
            raise


def _take_in(
    workload: Mapping[str, Any],
    request: Mapping[str, Any],
    settings: AdmitSettings,
    patch_for: Callable[[Wishes], Patch],
    translated: Translated | None = None,
) -> AdmissionAnswer:
    """Answer with a patch, or refuse a workload that cannot be read."""
    kind, uid = kind_of(workload), request["uid"]
    try:
        wishes = kind.wishes(workload)
        check_levels(wishes, settings.levels)
        _check_request(workload, wishes, Site(levels=settings.levels))
        # Inside the try: it raises if the submitter that the request names is not valid.
        patch = patch_for(wishes)
    except InvalidInput as found:
        error = found if translated is None else translated.in_words_of_author(found)
        described = _describe(workload)
        return AdmissionAnswer(
            _refuse(uid, described, error), "refused", described["kind"], str(error)
        )
    review = _respond(uid, allowed=True)
    _add_patch(review, patch)
    warnings = _warnings(workload, wishes, () if translated is None else translated.left_out)
    if warnings:
        review["response"]["warnings"] = warnings
    return AdmissionAnswer(review, "taken", kind.named(workload))


def _add_patch(review: dict[str, Any], patch: Patch) -> None:
    if patch:
        review["response"]["patchType"] = "JSONPatch"
        review["response"]["patch"] = base64.b64encode(orjson.dumps(patch)).decode()


def _group_kind(request: Mapping[str, Any]) -> tuple[str, str]:
    kind = request["kind"]
    return str(kind.get("group") or ""), str(kind.get("kind") or "")


def _warnings(
    workload: Mapping[str, Any], wishes: Wishes, without_meaning: Sequence[str]
) -> list[str]:
    found = []
    deadline_s = (workload.get("spec") or {}).get("activeDeadlineSeconds")
    if wishes.duration_s is not None and deadline_s not in {None, wishes.duration_s}:
        found.append(
            f"{labels.DURATION} ({wishes.duration_s} s) is not used: "
            f"spec.activeDeadlineSeconds ({deadline_s}) wins"
        )
    if wishes.waits_gated and kind_of(workload) is BATCH_JOB:
        found += _costs_of_gates(workload)
    left_out = ignored(kind_of(workload).pod_spec(workload))
    if left_out:
        found.append(f"not considered when nodes are chosen: {', '.join(left_out)}")
    if without_meaning:
        found.append(f"without a meaning here: {', '.join(without_meaning)}")
    return [f"fluxqueue: {text}"[:_MAX_WARNING] for text in found]


def _costs_of_gates(workload: Mapping[str, Any]) -> list[str]:
    """Return what a Job that waits with gated pods must know."""
    found = ["its pods exist while it waits, gated; a requeue ends them and makes others"]
    spec = workload.get("spec") or {}
    if spec.get("activeDeadlineSeconds") is not None:
        found.append(
            f"spec.activeDeadlineSeconds ({spec['activeDeadlineSeconds']}) counts while it waits; "
            "set it in the pod template instead"
        )
    return found


def _describe(workload: Mapping[str, Any]) -> dict[str, str]:
    meta, (api_version, kind) = workload.get("metadata") or {}, kind_of(workload).shown_as(workload)
    return {
        "group": api_version.rpartition("/")[0],
        "kind": kind,
        "name": meta.get("name") or meta.get("generateName") or "",
    }


def _refuse(uid: str, described: Mapping[str, str], error: InvalidInput) -> dict[str, Any]:
    review = _respond(uid, allowed=False)
    message = error.message + (f". Fix: {error.hint}" if error.hint else "")
    cause = {"reason": "FieldValueInvalid", "field": error.where, "message": message}
    review["response"]["status"] = {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": str(error),
        # kubectl builds its message from these: The Job "x" is invalid: field: message
        "details": {**described, "causes": [cause]},
    }
    return review


def _respond(uid: str, *, allowed: bool) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": allowed},
    }
