"""rbac.authorization.k8s.io/v1: validation of roles and bindings.

``authorizer`` decides what they allow. ``escalation`` decides which users may write them. Source:
``k8s.io/kubernetes/pkg/apis/rbac/validation``.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcluster.kinds.authorizer import GROUP
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.refusals import (
    NOT_SUPPORTED,
    FieldError,
    required,
    wrong,
)

_SUBJECTS = 'supported values: "ServiceAccount", "User", "Group"'


class _RbacStrategy(BaseStrategy):
    name_rule = staticmethod(names.path_segment)

    def __init__(self, type_name: str) -> None:
        self.is_namespaced = not type_name.startswith("Cluster")
        super().__init__(type_name)


class RoleStrategy(_RbacStrategy):
    """Role and ClusterRole."""

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check that every rule has verbs and something that they apply to."""
        errors: list[FieldError] = []
        for index, rule in enumerate(obj.get("rules") or ()):
            errors += self._rule_errors(rule, f"rules[{index}]")
        aggregation = obj.get("aggregationRule")
        if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
            text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
            path = "aggregationRule.clusterRoleSelectors"
            errors.append(required(path, text))
        return errors

    def _rule_errors(self, rule: Obj, path: str) -> Iterator[FieldError]:
        if not rule.get("verbs"):
            text = "verbs must contain at least one value"
            yield required(f"{path}.verbs", text)
        urls = rule.get("nonResourceURLs")
        if urls:
            where = f"{path}.nonResourceURLs"
            if self.is_namespaced:
                text = "namespaced rules cannot apply to non-resource URLs"
                yield wrong(where, urls, text)
            elif any(rule.get(key) for key in ("apiGroups", "resources", "resourceNames")):
                text = "rules cannot apply to both regular resources and non-resource URLs"
                yield wrong(where, urls, text)
            return
        if not rule.get("apiGroups"):
            text = "resource rules must supply at least one api group"
            yield required(f"{path}.apiGroups", text)
        if not rule.get("resources"):
            text = "resource rules must supply at least one resource"
            yield required(f"{path}.resources", text)


class BindingStrategy(_RbacStrategy):
    """RoleBinding and ClusterRoleBinding."""

    def default(self, obj: Obj) -> None:
        """Set the apiGroup of subjects and role references."""
        if "roleRef" in obj and not obj["roleRef"].get("apiGroup"):
            obj["roleRef"]["apiGroup"] = GROUP
        for subject in obj.get("subjects") or ():
            if subject.get("kind") in ("User", "Group"):
                subject.setdefault("apiGroup", GROUP)

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check that it names a role and subjects of known kinds."""
        ref = obj.get("roleRef") or {}
        errors: list[FieldError] = []
        if ref.get("apiGroup") != GROUP:
            text = f'supported values: "{GROUP}"'
            path = "roleRef.apiGroup"
            errors.append(FieldError(NOT_SUPPORTED, path, ref.get("apiGroup", ""), text))
        kinds = ("Role", "ClusterRole") if self.is_namespaced else ("ClusterRole",)
        if ref.get("kind") not in kinds:
            text = "supported values: " + ", ".join(f'"{kind}"' for kind in kinds)
            errors.append(FieldError(NOT_SUPPORTED, "roleRef.kind", ref.get("kind", ""), text))
        if not ref.get("name"):
            errors.append(required("roleRef.name"))
        else:
            errors += (
                wrong("roleRef.name", ref["name"], text) for text in names.path_segment(ref["name"])
            )
        for index, subject in enumerate(obj.get("subjects") or ()):
            errors += self._subject_errors(subject, f"subjects[{index}]")
        return errors

    def _subject_errors(self, subject: Obj, path: str) -> Iterator[FieldError]:
        name, kind = subject.get("name"), subject.get("kind", "")
        group = subject.get("apiGroup", "")
        if not name:
            yield required(f"{path}.name")
        if kind == "ServiceAccount":
            for text in names.dns_subdomain(name) if name else ():
                yield wrong(f"{path}.name", name, text)
            if group:
                text = 'supported values: ""'
                yield FieldError(NOT_SUPPORTED, f"{path}.apiGroup", group, text)
            if not self.is_namespaced and not subject.get("namespace"):
                yield required(f"{path}.namespace")
        elif kind in ("User", "Group"):
            if group != GROUP:
                text = f'supported values: "{GROUP}"'
                yield FieldError(NOT_SUPPORTED, f"{path}.apiGroup", group, text)
        else:
            yield FieldError(NOT_SUPPORTED, f"{path}.kind", kind, _SUBJECTS)

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse a change of the role."""
        errors = self.validate(new, ctx)
        ref = new.get("roleRef") or {}
        if ref != old.get("roleRef"):
            shown = {
                "APIGroup": ref.get("apiGroup", ""),
                "Kind": ref.get("kind", ""),
                "Name": ref.get("name", ""),
            }
            errors.append(wrong("roleRef", shown, "cannot change roleRef"))
        return errors
