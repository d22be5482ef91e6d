"""Reviews of an object that makes pods or Jobs: it is suspended if it can be, else its pods wait.

``admit`` asks these rules. The submitter comes first, then the label by which its pods opt in.
"""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.workload import labels
from fluxqueue.workload.holding import hold, mark
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER, assemble_owner
from fluxqueue.workload.owner_kinds import OwnerKind
from fluxqueue.workload.pods import controller_owner
from fluxqueue.workload.submitter import STAMPED, with_submitter
from fluxqueue.workload.suspension import with_asking_pods, with_stamps_of
from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict, label

_SEEN = "it was looked at when it was made"


def write_submitter(facts: Facts, request: Request) -> Facts | None:
    """The submitter is written into the templates, for the pods and Jobs that are made of them."""
    kind = STAMPED.get(request.group_kind)
    if kind is None or request.is_kept_out or not (request.is_creation or request.is_edit):
        return None
    old = None if request.is_creation else request.old
    submitters = request.settings.submitters
    return replace(facts, wanted=with_submitter(facts.wanted, old, kind, request.user, submitters))


def only_templates(facts: Facts, request: Request) -> Verdict | None:
    """Of some kinds only what they make is queued, such as the Jobs of a CronJob."""
    if request.entry is not None:
        return None
    is_changed = facts.wanted is not request.obj
    why = "what it makes is looked at" if is_changed else "its submitter is known"
    return Verdict("untouched", facts.wanted, why)


def asks(facts: Facts, request: Request) -> Facts | Verdict:
    """Only an object that asks to be queued is managed. What made it may ask in its place."""
    entry, said = _entry(request), label(facts.wanted)
    is_seen = request.operation in entry.operations
    asked = said or ("true" if request.all_ask else None)
    is_made = controller_owner(facts.wanted) is not None
    is_told = _is_told(facts, request)
    why = ""
    if not is_seen or not (request.is_creation or entry.is_late or entry.suspend):
        why = "only creation is looked at"
    elif asked != "true":
        why = f'label {labels.MANAGED} is not "true"'
    elif request.is_kept_out:
        why = f"namespace {request.namespace} is never managed"
    elif is_made and (said is None or entry.is_late or not (request.is_creation or is_told)):
        why = "what made it speaks for its pods"
    if why:
        # Unmanaged objects are guarded, too: otherwise an edit could forge our annotations.
        return Verdict("untouched", _guarded(facts, request).wanted, why)
    return replace(facts, workload=_assembled(facts, request))


def mark_told(facts: Facts, request: Request) -> Verdict | None:
    """An object that is suspended in the place of its maker is marked with its kinds of slots."""
    if not _is_told(facts, request):
        return None
    # Both are asked: the update that resumes the object is the last one that may mark it. Once it
    # is resumed it is no longer changed, because its pods exist.
    both = (facts.workload, {**facts.workload, **request.old, "kind": SUSPENDED_OWNER.name})
    if request.is_edit and not any(map(SUSPENDED_OWNER.is_suspended, both)):
        return Verdict("untouched", facts.wanted, _SEEN)
    facts = _guarded(facts, request)
    held = mark(_assembled(facts, request), request.settings.levels)
    return Verdict("taken", held.stored_as(facts.wanted), warnings=held.warnings)


def suspend(facts: Facts, request: Request) -> Verdict | None:
    """An object without pods yet is suspended, if its kind allows that."""
    if controller_owner(facts.wanted) is not None or _is_begun(facts, request):
        return None
    if SUSPENDED_OWNER.why_not(facts.workload) is not None:
        return None
    # An object that opts in by an update: admission-owned annotations on it were written by the
    # user. At a creation, they show that this is another round of the same admission.
    facts = facts if request.is_creation else _guarded(facts, request)
    held = hold(
        SUSPENDED_OWNER, _assembled(facts, request), facts.said, request.settings, request.user
    )
    return Verdict("taken", held.stored_as(facts.wanted), warnings=held.warnings)


def begun(facts: Facts, request: Request) -> Verdict | None:
    """An object with pods is not suspended: that would end them."""
    is_made = controller_owner(facts.wanted) is not None
    if is_made or not _is_begun(facts, request) or not _entry(request).suspend:
        return None
    return Verdict("untouched", _guarded(facts, request).wanted, _SEEN)


def ask_for_pods(facts: Facts, request: Request) -> Verdict:
    """The pods of every other object ask to be queued, by the label in its templates."""
    return Verdict("taken", with_asking_pods(_guarded(facts, request).wanted, _entry(request)))


def _entry(request: Request) -> OwnerKind:
    assert request.entry is not None, "an earlier rule ends the review of all other kinds"
    return request.entry


def _assembled(facts: Facts, request: Request) -> dict[str, object]:
    """Return the object in the form of its kind."""
    api_version = str(facts.wanted.get("apiVersion") or "")
    return assemble_owner(facts.wanted, _entry(request), api_version)


def _guarded(facts: Facts, request: Request) -> Facts:
    """Undo edits of annotations that only admission may write."""
    if not _entry(request).suspend:
        return facts
    return replace(facts, wanted=with_stamps_of(request.old, facts.wanted))


def _is_told(facts: Facts, request: Request) -> bool:
    """Tell whether the templates of its maker are in this object."""
    maker, kinds = controller_owner(facts.wanted), request.settings.owner_kinds
    if maker is None:
        return False
    above = kinds.find(maker["apiVersion"].rpartition("/")[0], maker["kind"])
    return above is not None and above.templates_in == request.group_kind


def _is_begun(facts: Facts, request: Request) -> bool:
    """Tell whether its pods may exist. Not so if it opts in only now, and was suspended so far."""
    is_late = label(request.old) != "true" and SUSPENDED_OWNER.is_suspended(facts.workload)
    return not request.is_creation and not is_late


RULES: tuple[Rule, ...] = (
    write_submitter,
    only_templates,
    asks,
    mark_told,
    suspend,
    begun,
    ask_for_pods,
)
