"""The roles and bindings of a new cluster: cluster-admin, admin, edit, view, discovery ...

``server.bootstrap`` stores them. ``tools/make_roles.py`` writes ``default_roles.json``. Rules of
aggregated roles are not in that file. They are collected here, as their controller does later.
"""

from __future__ import annotations

from importlib import resources

import orjson

from localcluster.obj import Obj
from localcluster.types.role_rules import aggregated_rules


def default_roles() -> list[Obj]:
    """Return all of them, roles before bindings."""
    text = resources.files(__package__).joinpath("default_roles.json").read_bytes()
    found: list[Obj] = orjson.loads(text)
    _aggregate([one for one in found if one["kind"] == "ClusterRole"])
    return found


def _aggregate(roles: list[Obj]) -> None:
    """Fill aggregated roles, and repeat until roles that aggregate each other are stable."""
    is_settled = False
    while not is_settled:
        is_settled = True
        for role in roles:
            rules = aggregated_rules(role, roles)
            if rules is not None and rules != role.get("rules"):
                role["rules"], is_settled = rules, False
