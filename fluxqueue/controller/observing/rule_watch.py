"""Cluster-scoped objects with rules as the controller sees them: their specs, and which are valid.

Part of ``watches``. FluxQueues and the kinds of ``RULE_KINDS`` are followed this way. ``flusher``
owns the loop and the transaction. The worker that matches obeys the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import orjson

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.dirty_set import DirtyKind
from fluxqueue.controller.observing.quarantine import said
from fluxqueue.db.store.queues import QueueSeen
from fluxqueue.db.store.rule_rows import RuleRowKind, RuleSeen
from fluxqueue.errors import InvalidInput
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import (
    FLUX_NODE_POOLS,
    FLUX_RESERVATIONS,
    SHARING_POLICIES,
    ApiResource,
)
from fluxqueue.nodepools.pool import read_node_pool
from fluxqueue.policy.calendar.reservation import read_reservation
from fluxqueue.policy.sharing.rules import read_sharing_rule
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

RETRY_CAP_S = 5.0

Result = TypeVar("Result")
Seen = TypeVar("Seen", QueueSeen, RuleSeen)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecKind:
    """One kind of such objects, and the words of its reports.

    ``word``: one object in messages. ``field``: its name in log records. ``reason``: the reason of
    an Event about an unusable spec. ``effect``: what that Event says before the fault.
    """

    resource: ApiResource
    word: str
    field: str
    reason: str
    effect: str = "its former spec stays in force if it had one"

    def attempt(self, name: str, read: Callable[[], Result]) -> tuple[Result | None, str | None]:
        """Return what ``read`` returns, or why the object ``name`` cannot be used.

        A defect of one object must not affect the others. Its former spec stays in force.
        """
        try:
            return read(), None
        except InvalidInput as error:
            return None, str(error)
        except Exception as error:
            logger.exception("%s cannot be read", self.word, extra={self.field: name})
            return None, said(error)


class SpecWatch(Generic[Seen]):
    """Follow all objects of one kind.

    Parameters
    ----------
    mark : receives the names of those that must be written.
    see_one : turns an object into what is written of it.
    """

    def __init__(
        self,
        client: KubeClient,
        mark: Callable[[str], None],
        clock: Clock,
        kind: SpecKind,
        see_one: Callable[[Object], Seen],
        *,
        on_trouble: TroubleHandler | None = None,
    ) -> None:
        self._client, self._mark, self._clock = client, mark, clock
        self._kind = kind
        self._see_one: Callable[[Object], Seen] = see_one
        # ``Watches`` starts and stops it.
        self.objects = Informer(
            client,
            kind.resource,
            on_change=self._on_change,
            transform=trim_spec,
            on_trouble=on_trouble,
            retry_cap_s=RETRY_CAP_S,
        )

    def _on_change(self, old: Object | None, new: Object | None) -> None:
        found = new or old
        assert found is not None, "an informer tells of an object, old or new"
        if old is None or new is None or _asked(old) != _asked(new):
            self._mark(found["metadata"]["name"])

    def see(self, names: Iterable[str]) -> tuple[list[Seen], list[str]]:
        """Return those of the objects ``names`` that exist, and the names of the others."""
        found = {name: self.objects.get("", name) for name in names}
        seen = [self._see_one(one) for one in found.values() if one is not None]
        return seen, [name for name, one in found.items() if one is None]

    def names(self) -> set[str]:
        """Return the names of all objects."""
        return {one["metadata"]["name"] for one in self.objects.items()}

    async def tell_faults(self, seen: Iterable[Seen]) -> None:
        """Emit an Event for each unusable spec."""
        for one in seen:
            if one.fault is not None:
                await self._tell_fault(one, one.fault)

    async def _tell_fault(self, one: Seen, fault: str) -> None:
        kind, resource = self._kind, self._kind.resource
        extra = {kind.field: one.name, "error": fault}
        logger.warning("%s cannot be used", kind.word, extra=extra)
        event = build_event(
            Involved(resource.api_version, resource.kind, "", one.name, one.uid),
            key=f"fault/{one.generation}",
            reason=kind.reason,
            message=f"{kind.effect}: {fault}",
            at_s=self._clock.now_s(),
            is_warning=True,
        )
        await tell_event(self._client, event)  # the row and the log have it too


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSpecKind(SpecKind):
    """A kind of objects that ``db.store.rule_rows`` writes.

    ``dirty``: the kind of their keys for the flusher. Its value is their kind in quarantine.
    ``rows``: the kind of their rows. ``read`` checks a spec. It receives the name and the spec.
    """

    dirty: DirtyKind
    rows: RuleRowKind
    read: Callable[[str, Object], object]


SHARING = RuleSpecKind(
    resource=SHARING_POLICIES,
    word="sharing policy",
    field="policy",
    reason="InvalidSharingPolicy",
    dirty=DirtyKind.SHARING,
    rows=RuleRowKind.SHARING,
    read=read_sharing_rule,
)
POOLS = RuleSpecKind(
    resource=FLUX_NODE_POOLS,
    word="node pool",
    field="pool",
    reason="InvalidNodePool",
    dirty=DirtyKind.NODE_POOL,
    rows=RuleRowKind.POOL,
    read=read_node_pool,
)
RESERVATIONS = RuleSpecKind(
    resource=FLUX_RESERVATIONS,
    word="reservation",
    field="reservation",
    reason="InvalidReservation",
    dirty=DirtyKind.RESERVATION,
    rows=RuleRowKind.RESERVATION,
    read=read_reservation,
)
RULE_KINDS = (SHARING, POOLS, RESERVATIONS)


class RuleWatch(SpecWatch[RuleSeen]):
    """Follow the objects of one of ``RULE_KINDS``. ``mark`` receives their names."""

    def __init__(
        self,
        client: KubeClient,
        mark: Callable[[str], None],
        clock: Clock,
        kind: RuleSpecKind,
        *,
        on_trouble: TroubleHandler | None = None,
    ) -> None:
        self.kind = kind
        super().__init__(client, mark, clock, kind, self._see_rule, on_trouble=on_trouble)

    def _see_rule(self, found: Object) -> RuleSeen:
        meta, spec = found["metadata"], found["spec"]
        name = meta["name"]
        _, fault = self.kind.attempt(name, lambda: _check(self.kind, name, spec))
        # Without a fault only: a spec that no row can hold would fail the writing of all others.
        kept = spec if fault is None else {}
        return RuleSeen(name, meta["uid"], int(meta.get("generation") or 0), kept, fault)


def _check(kind: RuleSpecKind, name: str, spec: Object) -> None:
    """Check that a row can hold a spec, with texts without null characters, and that it is valid.

    Raises
    ------
    InvalidInput
        A field is not valid, or no row can hold it.
    """
    try:
        is_storable = b"\\u0000" not in orjson.dumps(spec)
    except TypeError:  # a number of more than 64 bits
        is_storable = False
    if not is_storable:
        raise InvalidInput("has a null character or a number that is too large", where="spec")
    kind.read(name, spec)


def trim_spec(found: Object) -> Object:
    """Keep the spec. The figures in the status change all the time and have no effect here."""
    meta = found["metadata"]
    kept = ("name", "uid", "resourceVersion", "generation")
    return {
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": found.get("spec") or {},
    }


def _asked(found: Object) -> tuple[object, ...]:
    meta = found["metadata"]
    return meta["uid"], meta.get("generation"), found["spec"]
