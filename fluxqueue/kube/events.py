"""Events about objects: created in one place, and never a reason to fail.

The controller and the worker call it. An Event only informs people. A quota, a terminating
namespace or a busy server may refuse one, and nothing of ours depends on it. The name of an Event
is derived from its object and its content. So emitting it again does not duplicate it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.connection import METADATA_ONLY
from fluxqueue.kube.resources import EVENTS
from fluxqueue.process import metrics

logger = logging.getLogger(__name__)

SOURCE = "fluxqueue"
NAME_MAX = 253
MESSAGE_MAX_BYTES = 1024
"""The most that the API server accepts (``events.k8s.io``: note)."""

_DIGEST_CHARS = 16
_NO_NAMESPACE = "default"
"""The namespace in which the API server keeps Events about cluster-scoped objects."""


@dataclass(frozen=True, slots=True)
class Involved:
    """The object of an Event. ``namespace`` is empty for cluster-scoped objects."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: Mapping[str, Any], *, api_version: str, kind: str) -> Involved:
        """Return the reference to ``obj``, which may come from a list without its kind."""
        meta = obj["metadata"]
        return cls(api_version, kind, meta.get("namespace") or "", meta["name"], meta["uid"])

    def reference(self) -> dict[str, str]:
        """Return the reference as ``involvedObject`` has it."""
        found = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in found.items() if value}


def event_name(involved: Involved, key: str) -> str:
    """Return the name of the Event ``key`` about an object.

    The same object and key give the same name, valid for an object name of any length. It is
    ``<object>.<digest>``, with the object name cut at its end. A cut name of up to 253 characters
    begins as the object name does, and ends neither with a dash nor with a dot.
    """
    digest = hashlib.sha256(f"{involved.kind}/{involved.uid}/{key}".encode()).hexdigest()
    suffix = f".{digest[:_DIGEST_CHARS]}"
    return involved.name[: NAME_MAX - len(suffix)].rstrip("-.") + suffix


def build_event(
    involved: Involved,
    *,
    key: str,
    reason: str,
    message: str,
    at_s: int,
    is_warning: bool = False,
    related: Involved | None = None,
) -> dict[str, Any]:
    """Return an Event to create.

    Parameters
    ----------
    key : Distinguishes this Event from others about the same object. An Event with the same key
        exists once.
    reason : A word for machines, such as ``Started``.
    message : A sentence for people, cut at ``MESSAGE_MAX_BYTES``.
    at_s : Epoch seconds.
    related : A second object that the Event is about.
    """
    at = to_rfc3339(at_s)
    beside = {} if related in {None, involved} else {"related": related.reference()}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": event_name(involved, key),
            "namespace": involved.namespace or _NO_NAMESPACE,
        },
        "involvedObject": involved.reference(),
        **beside,
        "type": "Warning" if is_warning else "Normal",
        "reason": reason,
        "message": message.encode()[:MESSAGE_MAX_BYTES].decode(errors="ignore"),
        "source": {"component": SOURCE},
        "reportingComponent": SOURCE,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


async def tell_event(client: KubeClient, event: Mapping[str, Any]) -> bool:
    """Create an Event. Return whether it exists now. Raises nothing.

    A refusal is counted and logged, and the Event is dropped.
    """
    path = EVENTS.path(event["metadata"]["namespace"])
    try:
        # The name is derived from the content, so an Event that is sent twice exists once.
        await client.request("POST", path, body=event, is_repeatable=True, accept=METADATA_ONLY)
    except Conflict:
        return True  # it exists already
    except (ApiError, ApiUnavailable) as error:
        metrics.EVENTS_UNTOLD.labels(event["reason"]).inc()
        logger.info(
            "event not emitted",
            extra={
                "action": "event",
                "event": event["metadata"]["name"],
                "namespace": event["metadata"]["namespace"],
                "reason": event["reason"],
                "error": str(error),
            },
        )
        return False
    return True
