"""The objects that exist before the first request: namespaces, priority classes, roles.

``server`` calls it at its start. Objects from a data directory stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcluster.kinds.core import SYSTEM_PRIORITIES
from localcluster.kinds.default_roles import default_roles
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server.auth import ADMIN
from localcluster.server.machinery import Machinery
from localcluster.server.request import Target
from localcluster.server.writes import create_object

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


async def make_first_objects(machinery: Machinery) -> None:
    """Create the objects that do not exist."""
    for obj in _first_objects():
        group, _, version = obj["apiVersion"].rpartition("/")
        info = machinery.registry.by_kind(group, obj["kind"], version)
        if info is None:
            continue
        meta = obj["metadata"]
        name, namespace = meta["name"], meta.get("namespace", "")
        if machinery.store.get(group, info.plural, namespace, name) is not None:
            continue
        ctx = RequestContext(
            user=ADMIN,
            reader=machinery.store,
            namespace=namespace,
            name=name,
            now=machinery.now(),
            now_micro=machinery.now_micro(),
        )
        await create_object(machinery, Target(info, namespace, name, ""), obj, ctx)


def _first_objects() -> Iterator[Obj]:
    for name in SYSTEM_NAMESPACES:
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    for name, (value, description) in SYSTEM_PRIORITIES.items():
        yield {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        }
    yield from default_roles()
