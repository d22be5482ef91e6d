"""The audit log: user, request and decision, one line for each request over HTTP.

``gate`` writes it if the cluster was given a path. The lines are ``audit.k8s.io/v1`` Events of
level Metadata. They are written when rights were checked, so they do not contain the result of a
request.
"""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import orjson

from localcluster.kinds.actions import user_object
from localcluster.kinds.request_context import UserInfo
from localcluster.obj import Obj
from localcluster.server.request import ApiRequest
from localcluster.types.role_rules import Action

DECISION = "authorization.k8s.io/decision"


class AuditLog:
    """A file to which lines are appended. A line is written when :meth:`note` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)

    def close(self) -> None:
        """Stop writing."""
        self._file.close()

    def note(
        self, asker: UserInfo, request: ApiRequest, action: Action, *, is_allowed: bool
    ) -> None:
        """Write one request of ``asker`` and whether it is allowed."""
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
