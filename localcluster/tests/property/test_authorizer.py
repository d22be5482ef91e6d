"""Access control against a plain reading of its rules: everything that they allow, written out.

The model knows a small world of users, verbs, resources and names, and lists for each rule what
it allows in it. The authorizer must say yes to those and to nothing else, also after changes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localcluster.kinds.authorizer import GROUP, Rbac
from localcluster.kinds.request_context import UserInfo
from localcluster.server.store import Store
from localcluster.types.role_rules import Action, allows, not_covered

VERBS = ("get", "list", "create")
GROUPS = ("", "batch")
RESOURCES = ("pods", "jobs", "pods/status", "jobs/status", "jobs/scale")
NAMES = ("", "a", "b")
NAMESPACES = ("", "one", "two")
PATHS = ("/metrics", "/logs/a", "/logs")
USERS = (
    UserInfo("ann", groups=("system:authenticated",)),
    UserInfo("bob", groups=("readers", "system:authenticated")),
    UserInfo("system:serviceaccount:one:bot", groups=("system:serviceaccounts",)),
)
SUBJECTS = (
    {"kind": "User", "name": "ann"},
    {"kind": "User", "name": "readers"},
    {"kind": "Group", "name": "readers"},
    {"kind": "Group", "name": "ann"},
    {"kind": "ServiceAccount", "name": "bot"},
    {"kind": "ServiceAccount", "name": "bot", "namespace": "one"},
    {"kind": "ServiceAccount", "name": "bot", "namespace": "two"},
)

some = st.lists
rules = st.one_of(
    st.fixed_dictionaries(
        {
            "verbs": some(st.sampled_from((*VERBS, "*")), min_size=1, max_size=2),
            "apiGroups": some(st.sampled_from((*GROUPS, "*")), min_size=1, max_size=2),
            "resources": some(
                st.sampled_from((*RESOURCES, "*", "*/status", "pods/*", "*/*")),
                min_size=1,
                max_size=2,
            ),
        },
        optional={"resourceNames": some(st.sampled_from(("a", "b")), max_size=2)},
    ),
    st.fixed_dictionaries(
        {
            "verbs": some(st.sampled_from((*VERBS, "*")), min_size=1, max_size=2),
            "nonResourceURLs": some(
                st.sampled_from(("/metrics", "/logs/*", "/logs*", "*", "/")),
                min_size=1,
                max_size=2,
            ),
        }
    ),
)


def all_actions() -> Iterator[Action]:
    for verb, group, resource, name, namespace in itertools.product(
        VERBS, GROUPS, RESOURCES, NAMES, NAMESPACES
    ):
        plural, _, sub = resource.partition("/")
        yield Action(verb, group, plural, sub, namespace, name)
    for verb, path in itertools.product(VERBS, PATHS):
        yield Action(verb, path=path)


ACTIONS = tuple(all_actions())


def read(rule: dict[str, Any]) -> Iterator[Action]:
    """What a rule says, by its text: every combination of its words, ``*`` spelt out."""
    verbs = VERBS if "*" in rule["verbs"] else tuple(rule["verbs"])
    if "nonResourceURLs" in rule:
        for url in rule["nonResourceURLs"]:
            fits = {url} if url in PATHS else set()
            if url.endswith("*"):
                fits = {path for path in PATHS if path.startswith(url.rstrip("*"))}
            yield from (Action(verb, path=path) for verb in verbs for path in fits)
        return
    groups = GROUPS if "*" in rule["apiGroups"] else tuple(rule["apiGroups"])
    spelt = {"*": RESOURCES, "*/status": ("pods/status", "jobs/status")}
    resources = [one for word in rule["resources"] for one in spelt.get(word, (word,))]
    names = rule.get("resourceNames") or NAMES
    for verb, group, resource, name, namespace in itertools.product(
        verbs, groups, resources, names, NAMESPACES
    ):
        plural, _, sub = resource.partition("/")
        yield Action(verb, group, plural, sub, namespace, name)


@given(rules)
def test_a_rule_allows_what_it_says(rule: dict[str, Any]) -> None:
    """And nothing else."""
    assert {one for one in ACTIONS if allows(rule, one)} == set(read(rule)) & set(ACTIONS)


@given(some(rules, max_size=3), some(rules, max_size=3))
def test_what_is_handed_on_is_held(
    held: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> None:
    """No rule is called covered that allows more than its giver may do."""
    missing = not_covered(held, wanted)
    mine = {one for rule in held for one in ACTIONS if allows(rule, one)}
    given_on = {one for rule in wanted for one in ACTIONS if allows(rule, one)}
    refused = {one for rule in missing for one in ACTIONS if allows(rule, one)}
    assert given_on <= mine | refused
    assert not not_covered(wanted, wanted)


bindings = st.fixed_dictionaries(
    {
        "namespace": st.sampled_from(NAMESPACES),
        "kind": st.sampled_from(("Role", "ClusterRole")),
        "role": st.sampled_from(("first", "second", "gone")),
        "subjects": some(st.sampled_from(SUBJECTS), max_size=2),
    }
)
ROLES = ("first", "second")


def is_meant(user: UserInfo, subject: dict[str, str], namespace: str) -> bool:
    if subject["kind"] == "User":
        return subject["name"] == user.username
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    home = subject.get("namespace", namespace)
    return user.username == f"system:serviceaccount:{home}:{subject['name']}"


@given(
    st.fixed_dictionaries({name: some(rules, max_size=2) for name in ROLES}),
    some(bindings, max_size=4),
    st.data(),
)
def test_decisions_are_those_of_the_bindings(
    roles: dict[str, list[dict[str, Any]]], made: list[dict[str, Any]], data: st.DataObject
) -> None:
    """Bindings are made one after the other, and each counts at once."""
    store = Store()
    authorizer = Rbac(store)
    store.subscribe(authorizer.note)
    for name, given_rules in roles.items():
        store.create((GROUP, "clusterroles"), {"metadata": {"name": name}, "rules": given_rules})
        meta = {"name": name, "namespace": "one"}
        store.create((GROUP, "roles"), {"metadata": meta, "rules": given_rules[:1]})
    user = data.draw(st.sampled_from(USERS))
    asked = data.draw(some(st.sampled_from(ACTIONS), min_size=1, max_size=20))
    wanted: set[Action] = set()
    for index, binding in enumerate(made):
        namespace = binding["namespace"]
        meta = {"name": f"b{index}"} | ({"namespace": namespace} if namespace else {})
        plural = "rolebindings" if namespace else "clusterrolebindings"
        ref = {"kind": binding["kind"], "name": binding["role"]}
        subjects = binding["subjects"]
        store.create((GROUP, plural), {"metadata": meta, "roleRef": ref, "subjects": subjects})
        if any(is_meant(user, subject, namespace) for subject in subjects):
            wanted |= set(granted(binding, roles))
        for action in asked:
            assert authorizer.decide(user, action).is_allowed == (action in wanted), action


def granted(binding: dict[str, Any], roles: dict[str, list[dict[str, Any]]]) -> Iterator[Action]:
    """What a binding gives to those it names: in its namespace, or everywhere."""
    found = roles.get(binding["role"], [])
    if binding["kind"] == "Role":
        found = found[:1] if binding["namespace"] == "one" else []
    for rule in found:
        for action in read(rule):
            if not binding["namespace"] or action.namespace == binding["namespace"]:
                yield action
