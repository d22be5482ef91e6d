"""Reviews of an object that makes pods or Jobs: it is suspended if it can be, else its pods wait.

``admit`` asks these rules. The submitter comes first, then the label by which its pods opt in.
"""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.workload.holding import OwnerFacts, look_at_owner
from fluxqueue.workload.labels import MANAGED
from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict, label

_SEEN = "it was looked at when it was made"


def write_submitter(facts: Facts, request: Request) -> Facts | None:
    """The submitter is written into the templates, for the pods and Jobs that are made of them."""
    if request.is_kept_out or not (request.is_creation or request.is_edit):
        return None
    old = None if request.is_creation else request.old
    submitters, kind = request.settings.submitters, request.group_kind
    return replace(facts, wanted=submitters.with_submitter(facts.wanted, old, kind, request.user))


def only_templates(facts: Facts, request: Request) -> Verdict | None:
    """Of some kinds only what they make is queued, such as the Jobs of a CronJob."""
    if request.entry is not None:
        return None
    is_changed = facts.wanted is not request.obj
    why = "what it makes is looked at" if is_changed else "its submitter is known"
    return Verdict("untouched", facts.wanted, why)


def asks(facts: Facts, request: Request) -> Facts | Verdict:
    """Only an object that asks to be queued is managed. What made it may ask in its place."""
    entry, said = request.entry, label(facts.wanted)
    assert entry is not None, "an earlier rule ends the review of all other kinds"
    is_seen = request.operation in entry.operations
    owner = look_at_owner(entry, facts.wanted, request.old, request.settings.owner_kinds)
    may_ask = said is not None and not entry.is_late and (request.is_creation or owner.is_told)
    why = ""
    if not is_seen or not (request.is_creation or entry.is_late or entry.suspend):
        why = "only creation is looked at"
    elif (said or ("true" if request.all_ask else None)) != "true":
        why = f'label {MANAGED} is not "true"'
    elif request.is_kept_out:
        why = f"namespace {request.namespace} is never managed"
    elif owner.is_made and not may_ask:
        why = "what made it speaks for its pods"
    if why:
        # Unmanaged objects are guarded, too: otherwise an edit could forge our annotations.
        return Verdict("untouched", owner.guarded(facts.wanted), why)
    return replace(facts, owner=owner)


def mark_told(facts: Facts, request: Request) -> Verdict | None:
    """An object that is suspended in the place of its maker is marked with its kinds of slots."""
    owner = _owner(facts)
    if not owner.is_told:
        return None
    # The update that resumes the object is the last one that may mark it. Once it is resumed it is
    # no longer changed, because its pods exist.
    if request.is_edit and not owner.waits:
        return Verdict("untouched", facts.wanted, _SEEN)
    held = owner.marked(facts.wanted, request.settings.levels)
    return Verdict("taken", held.wanted, warnings=held.warnings)


def suspend(facts: Facts, request: Request) -> Verdict | None:
    """An object without pods yet is suspended, if its kind allows that."""
    owner = _owner(facts)
    if owner.is_made or not owner.can_wait or not (request.is_creation or owner.is_late):
        return None
    # An object that opts in by an update: admission-owned annotations on it were written by the
    # user. At a creation, they show that this is another round of the same admission.
    wanted = facts.wanted if request.is_creation else owner.guarded(facts.wanted)
    held = owner.held(wanted, facts.said, request.settings, request.user)
    return Verdict("taken", held.wanted, warnings=held.warnings)


def begun(facts: Facts, request: Request) -> Verdict | None:
    """An object with pods is not suspended: that would end them."""
    owner = _owner(facts)
    is_begun = not (owner.is_made or request.is_creation or owner.is_late)
    if not is_begun or not owner.entry.suspend:
        return None
    return Verdict("untouched", owner.guarded(facts.wanted), _SEEN)


def ask_for_pods(facts: Facts, _: Request) -> Verdict:
    """The pods of every other object ask to be queued, by the label in its templates."""
    return Verdict("taken", _owner(facts).asking(facts.wanted))


def _owner(facts: Facts) -> OwnerFacts:
    assert facts.owner is not None, "an earlier rule has looked at it"
    return facts.owner


RULES: tuple[Rule, ...] = (
    write_submitter,
    only_templates,
    asks,
    mark_told,
    suspend,
    begun,
    ask_for_pods,
)
