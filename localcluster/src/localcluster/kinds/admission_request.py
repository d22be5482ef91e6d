"""One request in admission: its attributes, what concerns it, and how expressions see it.

``webhooks`` and ``policies`` use it. It follows ``k8s.io/apiserver/pkg/admission/plugin``
(``webhook/predicates``, ``policy/matching``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from localcluster.kinds.actions import user_object
from localcluster.kinds.authorizer import Authorizer
from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.kinds.request_context import RequestContext, UserInfo
from localcluster.kinds.service_accounts import service_account_user
from localcluster.obj import Obj
from localcluster.types.cel import CelError, Eval
from localcluster.types.cel.rights import Rights, Verdict
from localcluster.types.label_match import match_label_selector
from localcluster.types.role_rules import Action


@dataclass(slots=True)
class Attributes:
    """One request in admission. ``obj`` changes as webhooks patch it."""

    info: ResourceInfo
    operation: str
    obj: Obj | None
    old: Obj | None
    ctx: RequestContext

    @property
    def subresource(self) -> str:
        """Return the subresource, such as ``status``, or ""."""
        return self.ctx.subresource

    @property
    def name(self) -> str:
        """Return the object's name, or "" before it is generated."""
        if self.operation == "CREATE" and not self.subresource:
            return str(((self.obj or {}).get("metadata") or {}).get("name", ""))
        return self.ctx.name

    def kind(self) -> Obj:
        """Return the kind of ``object`` in the review."""
        info = self.info
        sub = info.subresources.get(self.subresource)
        if sub is not None and sub.how not in ("status", "update"):
            return {
                "group": sub.group or info.group,
                "version": sub.version or info.version,
                "kind": sub.kind,
            }
        return {"group": info.group, "version": info.version, "kind": info.kind}


def _matches_word(words: list[str], value: str) -> bool:
    return "*" in words or value in words


def _matches_resource(patterns: list[str], resource: str, sub: str) -> bool:
    for pattern in patterns:
        left, _, right = pattern.partition("/")
        if left in ("*", resource) and (right == sub or (right == "*" and "/" in pattern)):
            return True
    return False


def matches_rules(hook: Obj, at: Attributes, info: ResourceInfo) -> bool:
    """Return whether one of the rules has this operation on this resource."""
    scope = "Namespaced" if info.namespaced and info.plural != "namespaces" else "Cluster"
    for rule in hook.get("rules") or ():
        if (
            _matches_word(rule.get("operations") or [], at.operation)
            and _matches_word(rule.get("apiGroups") or [], info.group)
            and _matches_word(rule.get("apiVersions") or [], info.version)
            and rule.get("scope", "*") in ("*", scope)
            and _matches_resource(rule.get("resources") or [], info.plural, at.subresource)
            and (not rule.get("resourceNames") or at.name in rule["resourceNames"])
        ):
            return True
    return False


def _labels(obj: Obj | None) -> dict[str, str]:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def matches_namespace(hook: Obj, at: Attributes) -> bool:
    """Match the namespaceSelector with the namespace, or with the object if it is one."""
    selector = hook.get("namespaceSelector") or {}
    if not selector:
        return True
    if (at.info.group, at.info.plural) == ("", "namespaces"):
        return match_label_selector(selector, _labels(at.obj if at.obj is not None else at.old))
    if not at.info.namespaced:
        return True
    namespace = at.ctx.reader.get("", "namespaces", "", at.ctx.namespace)
    return namespace is not None and match_label_selector(selector, _labels(namespace))


def matches_object(hook: Obj, at: Attributes) -> bool:
    """Match the objectSelector: the new or the old object is enough."""
    selector = hook.get("objectSelector") or {}
    if not selector:
        return True
    return any(
        obj is not None and match_label_selector(selector, _labels(obj)) for obj in (at.obj, at.old)
    )


def seen_as(matcher: Obj, at: Attributes, registry: Registry) -> ResourceInfo | None:
    """Return the resource as which a matcher sees the request, or None if it does not match.

    ``matcher`` has rules, selectors and a matchPolicy like a webhook.
    """
    if not matches_namespace(matcher, at) or not matches_object(matcher, at):
        return None
    if matches_rules(matcher, at, at.info):
        return at.info
    if matcher.get("matchPolicy") != "Equivalent":
        return None
    others = (i for i in registry if i is not at.info and i.storage == at.info.storage)
    return next((other for other in others if matches_rules(matcher, at, other)), None)


Convert = Callable[[Obj], Obj]


def conversion(info: ResourceInfo, seen_as: ResourceInfo) -> tuple[Convert, Convert]:
    """Return conversions to the version that the webhook wants, and back."""

    def same(obj: Obj) -> Obj:
        return obj

    if info is seen_as:
        return same, same

    def there(obj: Obj) -> Obj:
        return (seen_as.from_storage or same)((info.to_storage or same)(obj))

    def back(obj: Obj) -> Obj:
        return (info.from_storage or same)((seen_as.to_storage or same)(obj))

    return there, back


def review_request(at: Attributes, seen_as: ResourceInfo, convert: Convert) -> Obj:
    """Return ``request`` of an AdmissionReview, without its uid."""
    info, ctx = at.info, at.ctx
    request_kind = at.kind()
    kind = request_kind
    if seen_as is not info:
        kind = {"group": seen_as.group, "version": seen_as.version, "kind": seen_as.kind}
    request: Obj = {
        "kind": kind,
        "resource": {
            "group": seen_as.group,
            "version": seen_as.version,
            "resource": seen_as.plural,
        },
    }
    if at.subresource:
        request["subResource"] = at.subresource
    request["requestKind"] = request_kind
    request["requestResource"] = {
        "group": info.group,
        "version": info.version,
        "resource": info.plural,
    }
    if at.subresource:
        request["requestSubResource"] = at.subresource
    if at.name:
        request["name"] = at.name
    namespace = ctx.namespace if info.namespaced else ""
    if (info.group, info.plural) == ("", "namespaces"):
        namespace = at.name
    if namespace:
        request["namespace"] = namespace
    request["operation"] = at.operation
    request["userInfo"] = user_object(ctx.user)
    request["object"] = convert(at.obj) if at.obj is not None else None
    request["oldObject"] = convert(at.old) if at.old is not None else None
    request["dryRun"] = ctx.is_dry_run
    request["options"] = ctx.options or None
    return request


def environment(at: Attributes, seen: ResourceInfo, authorizer: Authorizer) -> Obj:
    """Return the variables of an expression about the request."""
    convert = conversion(at.info, seen)[0]
    namespace = at.ctx.namespace if at.info.namespaced else ""
    return {
        "object": convert(at.obj) if at.obj is not None else None,
        "oldObject": convert(at.old) if at.old is not None else None,
        "request": review_request(at, seen, convert),
        "namespaceObject": at.ctx.reader.get("", "namespaces", "", namespace)
        if namespace
        else None,
        "authorizer": _rights(at, at.ctx.user, authorizer),
    }


def _rights(at: Attributes, user: UserInfo, authorizer: Authorizer) -> Rights:
    def decide(action: Action) -> Verdict:
        decision = authorizer.decide(user, action)
        return Verdict(decision.is_allowed, decision.reason)

    def of_account(namespace: str, name: str) -> Rights:
        return _rights(at, service_account_user(namespace, name), authorizer)

    info, ctx = at.info, at.ctx
    namespace = ctx.namespace if info.namespaced else ""
    request = Action("", info.group, info.plural, at.subresource, namespace, at.name)
    return Rights(decide, of_account, request)


def conditions_hold(conditions: list[tuple[str, Eval]], env: Obj) -> bool:
    """Return whether all conditions hold. Raises CelError if one fails and none is false."""
    failure = ""
    for text, evaluate in conditions:
        try:
            if evaluate(env) is False:
                return False
        except CelError as error:
            failure = failure or f"expression '{text}' resulted in error: {error}"
    if failure:
        raise CelError(failure)
    return True
