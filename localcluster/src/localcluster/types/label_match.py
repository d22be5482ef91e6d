"""Matching of ``metav1.LabelSelector`` objects, for validation and admission. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def match_label_selector(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether the labels match. None matches nothing, an empty selector everything."""
    if selector is None:
        return False
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_fulfils(rule, labels) for rule in selector.get("matchExpressions") or ())


def _fulfils(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = rule.get("key", ""), rule.get("values") or ()
    operator = rule.get("operator")
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    if operator == "Exists":
        return key in labels
    return operator == "DoesNotExist" and key not in labels
