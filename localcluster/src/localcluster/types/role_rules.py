"""Rules of roles: what a rule allows, which rules cover others, what aggregates. Pure.

``kinds.authorizer`` calls it (is the user allowed to do that), and so do ``kinds.escalation`` (may
the user pass the right on) and the controller that fills aggregated ClusterRoles. It follows
``k8s.io/kubernetes/pkg/apis/rbac/v1`` (``evaluation_helpers``, ``policy_comparator``,
``policy_compact``). A rule is a ``PolicyRule`` of the API. Objects of a store are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localcluster.obj import Obj
from localcluster.types.label_match import match_label_selector
from localcluster.types.refusals import go_quote

Rule = Mapping[str, Any]

_PARTS = (
    ("apiGroups", "APIGroups"),
    ("resources", "Resources"),
    ("nonResourceURLs", "NonResourceURLs"),
    ("resourceNames", "ResourceNames"),
    ("verbs", "Verbs"),
)
EVERYTHING: tuple[Rule, ...] = (
    {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
    {"verbs": ["*"], "nonResourceURLs": ["*"]},
)


@dataclass(frozen=True, slots=True)
class Action:
    """What a user wants to do: a verb on a resource, or on a non-resource ``path`` (not None).

    ``name`` and ``namespace`` are empty if the request has none.
    """

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str | None = None


def allows(rule: Rule, action: Action) -> bool:
    """Return whether a rule allows an action in the scope of the rule."""
    verbs = rule.get("verbs") or ()
    if "*" not in verbs and action.verb not in verbs:
        return False
    if action.path is not None:
        return any(_covers_path(url, action.path) for url in rule.get("nonResourceURLs") or ())
    groups = rule.get("apiGroups") or ()
    if "*" not in groups and action.group not in groups:
        return False
    if not _has_resource(rule.get("resources") or (), action.resource, action.subresource):
        return False
    names = rule.get("resourceNames")
    return not names or action.name in names


def _has_resource(resources: Sequence[str], resource: str, subresource: str) -> bool:
    """Return whether a list of resources has a resource.

    ``pods/status`` is covered by itself, by ``*/status`` and by ``*``, but not by ``pods/*``.
    """
    if "*" in resources:
        return True
    if not subresource:
        return resource in resources
    return f"{resource}/{subresource}" in resources or f"*/{subresource}" in resources


def _covers_path(pattern: str, path: str) -> bool:
    if pattern == path:
        return True
    return pattern.endswith("*") and path.startswith(pattern.rstrip("*"))


# -- escalation -----------------------------------------------------------------------------


def not_covered(held: Sequence[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return what no rule of ``held`` covers, as rules of one verb on one resource each."""
    return [
        single
        for rule in wanted
        for single in _singles(rule)
        if not any(_covers(owned, single) for owned in held)
    ]


def _singles(rule: Rule) -> Iterator[Obj]:
    verbs = rule.get("verbs") or ()
    for group in rule.get("apiGroups") or ():
        for resource in rule.get("resources") or ():
            for verb in verbs:
                single = {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                names = rule.get("resourceNames") or ()
                yield from ({**single, "resourceNames": [name]} for name in names)
                if not names:
                    yield single
    for url in rule.get("nonResourceURLs") or ():
        yield from ({"nonResourceURLs": [url], "verbs": [verb]} for verb in verbs)


def _covers(owned: Rule, single: Obj) -> bool:
    """Return whether one rule allows whatever a single one allows (``ruleCovers``)."""
    if not _has_word(owned.get("verbs") or (), single["verbs"][0]):
        return False
    if "nonResourceURLs" in single:
        url = single["nonResourceURLs"][0]
        return any(_covers_path(pattern, url) for pattern in owned.get("nonResourceURLs") or ())
    if not _has_word(owned.get("apiGroups") or (), single["apiGroups"][0]):
        return False
    resource, _, subresource = single["resources"][0].partition("/")
    if not _has_resource(owned.get("resources") or (), resource, subresource):
        return False
    names = owned.get("resourceNames")
    return not names or single.get("resourceNames", [None])[0] in names


def _has_word(words: Sequence[str], word: str) -> bool:
    return "*" in words or word in words


def rule_texts(singles: Iterable[Rule]) -> list[str]:
    """Return single rules as an error lists them: verbs of one resource together, sorted."""
    verbs: dict[tuple[tuple[str, tuple[str, ...]], ...], list[str]] = {}
    for rule in singles:
        thing = tuple((key, tuple(rule[key])) for key, _ in _PARTS[:-1] if rule.get(key))
        verbs.setdefault(thing, []).extend(rule["verbs"])
    return sorted({_text({**dict(thing), "verbs": listed}) for thing, listed in verbs.items()})


def _text(rule: Mapping[str, Sequence[str]]) -> str:
    shown = (
        f"{label}:[{' '.join(go_quote(word) for word in rule[key])}]"
        for key, label in _PARTS
        if rule.get(key)
    )
    return "{" + ", ".join(shown) + "}"


# -- aggregation ----------------------------------------------------------------------------


def aggregated_rules(role: Obj, roles: Iterable[Obj]) -> list[Obj] | None:
    """Return the rules that an aggregated ClusterRole must have, or None for another role.

    The rules of the matching ``roles`` come selector by selector, in the order of the roles' names.
    Equal rules come once.
    """
    aggregation = role.get("aggregationRule")
    if aggregation is None:
        return None
    others = sorted(roles, key=lambda one: str(one["metadata"]["name"]))
    rules: list[Obj] = []
    for selector in aggregation.get("clusterRoleSelectors") or ():
        for other in others:
            if other["metadata"]["name"] == role["metadata"]["name"]:
                continue
            if match_label_selector(selector, other["metadata"].get("labels") or {}):
                rules += [rule for rule in other.get("rules") or () if rule not in rules]
    return rules
