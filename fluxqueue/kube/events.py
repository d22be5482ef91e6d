"""Events: what is told about an object, made in one place and never a reason to fail.

Called by the controller and by the worker. An Event is a courtesy to people who look: a quota, a
namespace that is ending or a server that is busy may refuse one, and nothing of ours depends on it.
Its name is derived from what it says and of whom, so telling it again is told apart from news.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue import metrics
from fluxqueue.clock import to_rfc3339
from fluxqueue.errors import ApiError, ApiUnavailable, Conflict
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import EVENTS

logger = logging.getLogger(__name__)

SOURCE = "fluxqueue"
NAME_MAX = 253
MESSAGE_MAX_BYTES = 1024
"""As much as the API server takes (``events.k8s.io``: note)."""

_DIGEST_CHARS = 16
_NO_NAMESPACE = "default"
"""Where the API server keeps Events about objects that have no namespace."""


@dataclass(frozen=True, slots=True)
class Involved:
    """The object that an Event is about; ``namespace`` is empty for cluster-scoped objects."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str

    @classmethod
    def of(cls, obj: Mapping[str, Any], *, api_version: str, kind: str) -> Involved:
        """The object itself, which may come from a list that leaves its kind out."""
        meta = obj["metadata"]
        return cls(api_version, kind, meta.get("namespace") or "", meta["name"], meta["uid"])

    def reference(self) -> dict[str, str]:
        """As ``involvedObject`` has it."""
        found = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
        }
        return {key: value for key, value in found.items() if value}


def event_name(involved: Involved, key: str) -> str:
    """Name the Event ``key`` of an object: the same for the same, and valid for any object's name.

    ``<object>.<digest>``, the object's name cut from its end. What is left of a name of up to 253
    characters begins as the name does, and ends neither with a dash nor with a dot.
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
    """An Event as it is created.

    Parameters
    ----------
    key : tells this Event from others about the same object; what is told under the same key again
        is told once.
    reason : a word for machines, as ``Started``.
    message : a sentence for people; cut at ``MESSAGE_MAX_BYTES``.
    at_s : epoch seconds.
    related : another object that it is about, so that one Event tells of both.
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
    """Create an Event; tell whether it stands there now. Whatever is answered, nothing is raised.

    A refusal is counted and said in the log, and the Event is not told.
    """
    path = EVENTS.path(event["metadata"]["namespace"])
    try:
        # Its name is its own: sent twice it is there once.
        await client.request("POST", path, body=event, is_repeatable=True, metadata_only=True)
    except Conflict:
        return True  # told already
    except (ApiError, ApiUnavailable) as error:
        metrics.EVENTS_UNTOLD.labels(event["reason"]).inc()
        logger.info(
            "event not told",
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
