"""The roles and bindings that a new cluster has: cluster-admin, admin, edit, view, discovery ...

Put into the store by ``server.bootstrap``.  ``default_roles.json`` is written by
``tools/make_roles.py``; rules of aggregated roles do not stand there and are gathered here, as the
controller for them does later.
"""

from __future__ import annotations

from importlib import resources

import orjson

from localcluster.obj import Obj
from localcluster.types.role_rules import aggregated_rules


def default_roles() -> list[Obj]:
    """All of them, roles before bindings."""
    text = resources.files(__package__).joinpath("default_roles.json").read_bytes()
    found: list[Obj] = orjson.loads(text)
    _aggregate([one for one in found if one["kind"] == "ClusterRole"])
    return found


def _aggregate(roles: list[Obj]) -> None:
    """Fill aggregated roles, until those that are made of each other have settled."""
    is_settled = False
    while not is_settled:
        is_settled = True
        for role in roles:
            rules = aggregated_rules(role, roles)
            if rules is not None and rules != role.get("rules"):
                role["rules"], is_settled = rules, False
