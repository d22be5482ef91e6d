"""ResourceSharingPolicies as the controller sees them: each with its spec, and whether it is valid.

Part of ``watches``. ``flusher`` owns the loop and the transaction. The worker that matches obeys
the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import orjson

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.quarantine import said
from fluxqueue.controller.observing.queues import trim_queue
from fluxqueue.db.store.sharing import SharingPolicySeen
from fluxqueue.errors import InvalidInput
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import SHARING_POLICIES
from fluxqueue.objects import Object
from fluxqueue.policy.sharing.rules import read_sharing_rule

logger = logging.getLogger(__name__)

RETRY_CAP_S = 5.0


@dataclass(slots=True)
class SharingWatch:
    """Follows ResourceSharingPolicies. ``mark`` receives the names of those to be written."""

    client: KubeClient
    mark: Callable[[str], None]
    clock: Clock
    on_trouble: TroubleHandler | None = None
    policies: Informer = field(init=False)

    def __post_init__(self) -> None:
        """Make the informer. ``Watches`` starts and stops it."""
        self.policies = Informer(
            self.client,
            SHARING_POLICIES,
            on_change=self._on_policy,
            transform=trim_queue,
            on_trouble=self.on_trouble,
            retry_cap_s=RETRY_CAP_S,
        )

    def _on_policy(self, old: Object | None, new: Object | None) -> None:
        policy = new or old
        assert policy is not None, "an informer tells of an object, old or new"
        if old is None or new is None or _asked(old) != _asked(new):
            self.mark(policy["metadata"]["name"])

    def see(self, names: Iterable[str]) -> tuple[list[SharingPolicySeen], list[str]]:
        """Return those of the policies ``names`` that exist, and the names of the others."""
        found = {name: self.policies.get("", name) for name in names}
        seen = [self._see_one(one) for one in found.values() if one is not None]
        return seen, [name for name, one in found.items() if one is None]

    def names(self) -> set[str]:
        """Return the names of all policies."""
        return {one["metadata"]["name"] for one in self.policies.items()}

    def _see_one(self, policy: Object) -> SharingPolicySeen:
        meta, spec = policy["metadata"], policy["spec"]
        fault = None
        try:
            check_storable(spec)
            read_sharing_rule(meta["name"], spec)
        except InvalidInput as error:
            fault = str(error)
        except Exception as error:
            # A defect of one policy must not affect the others. Its former spec stays in force.
            logger.exception("sharing policy cannot be read", extra={"policy": meta["name"]})
            fault = said(error)
        # Without a fault only: a spec that no row can hold would fail the writing of all others.
        kept = spec if fault is None else {}
        return SharingPolicySeen(
            meta["name"], meta["uid"], int(meta.get("generation") or 0), kept, fault
        )

    async def tell_faults(self, seen: Iterable[SharingPolicySeen]) -> None:
        """Emit an Event for each unusable spec."""
        for one in seen:
            if one.fault is None:
                continue
            extra = {"policy": one.name, "error": one.fault}
            logger.warning("sharing policy cannot be used", extra=extra)
            about = Involved(
                SHARING_POLICIES.api_version, SHARING_POLICIES.kind, "", one.name, one.uid
            )
            event = build_event(
                about,
                key=f"fault/{one.generation}",
                reason="InvalidSharingPolicy",
                message=f"its former spec stays in force if it had one: {one.fault}",
                at_s=self.clock.now_s(),
                is_warning=True,
            )
            await tell_event(self.client, event)  # the row and the log have it too


def check_storable(spec: Object) -> None:
    """Check that a row can hold a spec: texts without null characters, numbers of 64 bits."""
    try:
        is_storable = b"\\u0000" not in orjson.dumps(spec)
    except TypeError:
        is_storable = False
    if not is_storable:
        raise InvalidInput("has a null character or a number that is too large", where="spec")


def _asked(policy: Object) -> tuple[object, ...]:
    meta = policy["metadata"]
    return meta["uid"], meta.get("generation"), policy["spec"]
