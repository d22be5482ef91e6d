"""The roles of a new cluster, and what is remembered of users."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.kinds import authorizer as module
from localcluster.kinds.authorizer import GROUP, AlwaysAllow, Rbac
from localcluster.kinds.default_roles import default_roles
from localcluster.kinds.request_context import UserInfo
from localcluster.server.store import Store
from localcluster.types.role_rules import Action, allows

ROLES = {one["metadata"]["name"]: one for one in default_roles() if one["kind"] == "ClusterRole"}


@pytest.mark.parametrize(
    ("role", "action", "is_allowed"),
    [
        ("view", Action("list", "", "pods"), True),
        ("view", Action("get", "", "secrets"), False),
        ("view", Action("create", "batch", "jobs"), False),
        ("edit", Action("create", "batch", "jobs"), True),
        ("edit", Action("get", "", "secrets"), True),
        ("edit", Action("create", GROUP, "rolebindings"), False),
        ("admin", Action("create", GROUP, "rolebindings"), True),
        ("admin", Action("create", "", "nodes"), False),
        ("cluster-admin", Action("any", "thing.example.com", "things", "sub"), True),
        ("system:discovery", Action("get", path="/apis/batch/v1"), True),
        ("system:public-info-viewer", Action("get", path="/apis"), False),
    ],
)
def test_default_roles_allow_what_they_are_known_for(
    role: str, action: Action, is_allowed: bool
) -> None:
    assert any(allows(rule, action) for rule in ROLES[role]["rules"]) == is_allowed


def test_aggregated_roles_hold_one_another() -> None:
    """Edit is made of view, admin of edit. Each rule once."""
    view, edit, admin = (ROLES[name]["rules"] for name in ("view", "edit", "admin"))
    for smaller, larger in ((view, edit), (edit, admin)):
        assert all(rule in larger for rule in smaller)
        assert len(larger) > len(smaller)
    assert all(admin.count(rule) == 1 for rule in admin)


def _store(rules: list[Any]) -> Store:
    store = Store()
    store.create((GROUP, "clusterroles"), {"metadata": {"name": "r"}, "rules": rules})
    binding = {
        "metadata": {"name": "b"},
        "roleRef": {"kind": "ClusterRole", "name": "r"},
        "subjects": [{"kind": "Group", "name": "all"}],
    }
    store.create((GROUP, "clusterrolebindings"), binding)
    return store


def test_rules_are_gathered_once_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other objects change nothing. A role does at once."""
    store = _store([{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}])
    authorizer = Rbac(store)
    store.subscribe(authorizer.note)
    gathered: list[str] = []
    gather = Rbac._gather

    def counting(self: Rbac, user: UserInfo, namespace: str) -> Any:
        gathered.append(user.username)
        return gather(self, user, namespace)

    monkeypatch.setattr(Rbac, "_gather", counting)
    ann, get = UserInfo("ann", groups=("all",)), Action("get", "", "pods", namespace="n")
    for _ in range(3):
        assert authorizer.decide(ann, get).is_allowed
        store.create(("", "pods"), {"metadata": {"name": f"p{store.rv}", "namespace": "n"}})
    assert gathered == ["ann"]
    role = store.entry((GROUP, "clusterroles"), "", "r")
    assert role is not None
    store.replace((GROUP, "clusterroles"), role, {**role.obj, "rules": []})
    assert not authorizer.decide(ann, get).is_allowed
    assert gathered == ["ann", "ann"]


def test_as_many_users_as_ask_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "USERS_MAX", 3)
    authorizer = Rbac(_store([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]))
    for number in range(10):
        user = UserInfo(f"u{number}", groups=("all",))
        assert authorizer.decide(user, Action("get", "", "pods")).is_allowed
        assert len(authorizer._known) <= 3


def test_without_access_control_everybody_may_everything() -> None:
    nobody = UserInfo("nobody")
    assert AlwaysAllow().is_almighty(nobody)
    assert AlwaysAllow().decide(nobody, Action("delete", "", "nodes")).is_allowed
