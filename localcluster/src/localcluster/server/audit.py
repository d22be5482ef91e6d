"""Who asked for what, and was he let: one line for each request that came over HTTP.

Written by ``gate`` if the cluster was told where to.  The lines are ``audit.k8s.io/v1`` Events of
level Metadata, but written when rights were judged: what became of a request does not stand there.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import orjson

from localcluster.kinds.actions import user_object
from localcluster.kinds.registry import UserInfo
from localcluster.obj import Obj
from localcluster.server.request import ApiRequest
from localcluster.types.role_rules import Action

DECISION = "authorization.k8s.io/decision"


class AuditLog:
    """A file that lines are added to; each is there when :meth:`note` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        """Write no more."""
        self._file.close()

    def note(
        self, asker: UserInfo, request: ApiRequest, action: Action, *, is_allowed: bool
    ) -> None:
        """One request of ``asker``, and whether he may."""
        now_s = time.time()
        event: Obj = {
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": str(uuid.uuid4()),
            "stage": "RequestReceived",
            "requestURI": request.path,
            "verb": action.verb,
            "user": user_object(asker),
        }
        if request.acting_as is not None:
            event["impersonatedUser"] = user_object(request.acting_as)
        if action.path is None:
            event["objectRef"] = _reference(action)
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s))
        event["requestReceivedTimestamp"] = f"{whole}.{int(now_s % 1 * 1e6):06d}Z"
        event["annotations"] = {DECISION: "allow" if is_allowed else "forbid"}
        self._file.write(orjson.dumps(event) + b"\n")


def _reference(action: Action) -> Obj:
    shown = {
        "resource": action.resource,
        "namespace": action.namespace,
        "name": action.name,
        "apiGroup": action.group,
        "subresource": action.subresource,
    }
    return {key: value for key, value in shown.items() if value}
