"""What all handlers share: store, registry, admission, clock, names. One per server.

``server`` creates it. ``reads``, ``writes``, ``deletion`` and ``subresources`` get it.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import orjson

from localcluster.kinds.authorizer import AlwaysAllow, Authorizer
from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server import tables
from localcluster.server.negotiation import Media, encode, negotiate
from localcluster.server.request import Answer, ApiRequest, Target
from localcluster.server.store import Entry, Store

_SUFFIX = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 58


class AdmissionChain(Protocol):
    """The admission of writes before anything is stored (``kinds.admission.Admission``)."""

    async def admit(
        self,
        info: ResourceInfo,
        operation: str,
        obj: Obj | None,
        old: Obj | None,
        ctx: RequestContext,
    ) -> Obj | None:
        """Return the object to continue with. Raises StatusError to refuse."""


@dataclass(slots=True)
class Machinery:
    """The parts of one API server. ``wall_s`` returns the time in seconds since 1970."""

    store: Store
    registry: Registry
    admission: AdmissionChain
    authorizer: Authorizer = field(default_factory=AlwaysAllow)
    wall_s: Callable[[], float] = time.time
    random: random.Random = field(default_factory=random.Random)

    def now(self) -> str:
        """Return the time as RFC 3339 in whole seconds."""
        return f"{_whole_second(int(self.wall_s()))}Z"

    def now_micro(self) -> str:
        """Return the time as RFC 3339 with six digits."""
        wall_s = self.wall_s()
        return f"{_whole_second(int(wall_s))}.{int(wall_s % 1 * 1_000_000):06d}Z"

    def new_uid(self) -> str:
        """Return a random uid."""
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def generate_name(self, base: str) -> str:
        """Return ``base`` and five random characters, cut so that it stays a label value."""
        return base[:_LONGEST_BASE] + "".join(self.random.choices(_SUFFIX, k=5))

    def context(self, request: ApiRequest, target: Target, operation: str) -> RequestContext:
        """Return what strategies and admission may know about a request."""
        return RequestContext(
            user=request.user,
            reader=self.store,
            namespace=target.namespace,
            name=target.name,
            subresource=target.subresource,
            operation=operation,
            now=self.now(),
            now_micro=self.now_micro(),
        )

    # -- answers ----------------------------------------------------------------------------

    def shown(self, info: ResourceInfo, entry: Entry) -> Entry:
        """Return the entry in the requested version."""
        if info.from_storage is None:
            return entry
        return entry.form(info.api_version, info.from_storage)

    def answer_entry(
        self, request: ApiRequest, info: ResourceInfo, entry: Entry, code: int = 200
    ) -> Answer:
        """Return an answer with a stored object, in the form that the client accepts."""
        media = negotiate(request.headers.get("accept", ""))
        shown = self.shown(info, entry)
        if not media.form and not media.is_yaml:
            return Answer(code, shown.raw)
        return self.answer_object(request, info, shown.obj, code)

    def answer_object(
        self, request: ApiRequest, info: ResourceInfo, obj: Obj, code: int = 200
    ) -> Answer:
        """Return the same for an object that is not stored (dry run, Scale ...)."""
        media = negotiate(request.headers.get("accept", ""))
        if media.form == "Table":
            include = tables.include_object(request.query.get("includeObject", ""))
            meta = {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
            obj = tables.table(info, [obj], meta, media, include)
        elif media.form:
            tables.check_partial(info, media, is_list=False)
            obj = tables.partial(obj, media.form_version)
        return Answer(code, encode(obj, media), media.content_type)


def answer_status(request: ApiRequest, status: Obj, code: int) -> Answer:
    """Return a Status. A client that wants a Table gets a plain Status."""
    accept = request.headers.get("accept", "")
    is_yaml = accept.startswith(("application/yaml", "application/x-yaml"))
    media = Media(is_yaml=is_yaml)
    return Answer(code, encode(status, media), media.content_type)


def format_time(wall_s: float) -> str:
    """Return RFC 3339, whole seconds, UTC."""
    return f"{_whole_second(int(wall_s))}Z"


@lru_cache(maxsize=64)
def _whole_second(wall_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(wall_s))


def copy_of(entry: Entry) -> Obj:
    """Return a copy of a stored object that may be changed. Parsing is the fastest deep copy."""
    obj: Obj = orjson.loads(entry.raw)
    return obj
