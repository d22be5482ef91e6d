"""The actions of pods/binding, pods/eviction, serviceaccounts/token and the reviews.

``server.subresources`` calls them through ``Subresource.handler`` and ``ResourceInfo.create_only``.
``authorizer`` decides about rights.
"""

from __future__ import annotations

from typing import Protocol

import orjson

from localcluster.kinds.authorizer import Authorizer
from localcluster.kinds.request_context import RequestContext, UserInfo
from localcluster.obj import Obj
from localcluster.types.label_match import match_label_selector
from localcluster.types.refusals import (
    FieldError,
    Raw,
    StatusError,
    bad_request,
    conflict,
    invalid,
    not_found,
    not_served,
    wrong,
)
from localcluster.types.role_rules import Action, Rule


class Tokens(Protocol):
    """Service-account tokens (``server.auth``)."""

    def issue(self, account: Obj, spec: Obj) -> tuple[str, str]:
        """Return a token for a ServiceAccount and the time it expires (RFC 3339)."""

    def review(self, token: str, audiences: list[str]) -> UserInfo | str:
        """Return the user of a token, or why it is not valid."""


def bind_pod(body: Obj, pod: Obj, ctx: RequestContext) -> Obj:
    """Assign a pod to a node: set nodeName, PodScheduled=True, copy annotations and labels."""
    meta = body.get("metadata") or {}
    name = pod["metadata"]["name"]
    if meta.get("name") and meta["name"] != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = body.get("target") or {}
    if not target.get("name"):
        raise StatusError(500, "", "target.name: Required value")
    uid = meta.get("uid")
    if uid and uid != pod["metadata"]["uid"]:
        raise conflict(
            "",
            "pods",
            name,
            f"StorageError: invalid object, Code: 4, Key: /registry/pods/"
            f"{pod['metadata']['namespace']}/{name}, ResourceVersion: 0, AdditionalErrorMsg: "
            f"Precondition failed: UID in precondition: {uid}, UID in object meta: "
            f"{pod['metadata']['uid']}",
        )
    spec = pod["spec"]
    if pod["metadata"].get("deletionTimestamp"):
        text = f"pod {name} is being deleted, cannot be assigned to a host"
        raise conflict("", "pods/binding", name, text)
    if spec.get("nodeName"):
        text = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise conflict("", "pods/binding", name, text)
    if spec.get("schedulingGates"):
        raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")
    spec["nodeName"] = target["name"]
    for key in ("annotations", "labels"):
        if meta.get(key):
            pod["metadata"].setdefault(key, {}).update(meta[key])
    _set_scheduled(pod, ctx)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _set_scheduled(pod: Obj, ctx: RequestContext) -> None:
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    fresh = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": ctx.now,
    }
    for index, condition in enumerate(conditions):
        if condition.get("type") == "PodScheduled":
            conditions[index] = fresh
            return
    conditions.append(fresh)


def check_eviction(body: Obj, pod: Obj, ctx: RequestContext) -> Obj:
    """Mark the pod as disrupted. Raise 429 if a budget forbids the eviction."""
    meta = body.get("metadata") or {}
    name = pod["metadata"]["name"]
    if meta.get("name") and meta["name"] != name:
        raise bad_request("name in URL does not match name in Eviction object")
    is_active = (pod.get("status") or {}).get("phase") == "Running"
    labels = pod["metadata"].get("labels") or {}
    for budget in ctx.reader.list("policy", "poddisruptionbudgets", ctx.namespace):
        if is_active and match_label_selector(budget["spec"].get("selector"), labels):
            _check_budget(budget)
    if is_active:
        _add_disruption(pod, ctx)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _check_budget(budget: Obj) -> None:
    status = budget.get("status") or {}
    if status.get("disruptionsAllowed", 0) > 0:
        return
    message = (
        f"The disruption budget {budget['metadata']['name']} needs "
        f"{status.get('desiredHealthy', 0)} healthy pods and has "
        f"{status.get('currentHealthy', 0)} currently"
    )
    raise StatusError(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        details={"causes": [{"reason": "DisruptionBudget", "message": message}]},
    )


def _add_disruption(pod: Obj, ctx: RequestContext) -> None:
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    if any(c.get("type") == "DisruptionTarget" for c in conditions):
        return
    conditions.append(
        {
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": ctx.now,
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }
    )


_BOUND = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}


def _check_bound(bound: Obj | None, namespace: str, ctx: RequestContext) -> None:
    """Raise unless the object that a token is bound to exists."""
    if bound is None:
        return
    group, _, version = str(bound.get("apiVersion") or "").rpartition("/")
    kind, name = bound.get("kind", ""), bound.get("name", "")
    if (group, version) != ("", "v1") or kind not in _BOUND:
        raise bad_request(f"cannot bind token to object of type {group}/{version}, Kind={kind}")
    plural = _BOUND[kind]
    found = ctx.reader.get("", plural, "" if kind == "Node" else namespace, name)
    if found is None:
        raise not_found("", plural, name)
    if bound.get("uid") and bound["uid"] != found["metadata"]["uid"]:
        text = (
            f"the UID in the bound object reference ({bound['uid']}) does not match the UID in "
            "record. The object might have been deleted and then recreated"
        )
        raise conflict("", plural, name, text)


class Reviews:
    """The create-only resources of authentication and authorization."""

    def __init__(self, tokens: Tokens | None, authorizer: Authorizer) -> None:
        self._tokens, self._authorizer = tokens, authorizer

    def token(self, body: Obj, account: Obj, ctx: RequestContext) -> Obj:
        """Handle serviceaccounts/token: return a TokenRequest with its token."""
        spec = body.setdefault("spec", {})
        seconds = spec.get("expirationSeconds", 3600)
        if seconds < 600:
            text = "may not specify a duration less than 10 minutes"
            error = wrong("spec.expirationSeconds", seconds, text)
            raise invalid("authentication.k8s.io", "TokenRequest", "", [error])
        if self._tokens is None:
            raise not_served("service-account tokens")
        _check_bound(spec.get("boundObjectRef"), account["metadata"]["namespace"], ctx)
        spec["expirationSeconds"] = seconds
        spec.setdefault("audiences", ["https://kubernetes.default.svc"])
        spec.setdefault("boundObjectRef", None)
        token, expires = self._tokens.issue(account, spec)
        meta = account["metadata"]
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
                "creationTimestamp": ctx.now,
            },
            "spec": spec,
            "status": {"token": token, "expirationTimestamp": expires},
        }

    def token_review(self, body: Obj, ctx: RequestContext) -> Obj:
        """Handle TokenReview: return which user the token belongs to."""
        if self._tokens is None:
            raise not_served("token reviews")
        spec = body.get("spec") or {}
        if not spec.get("token"):
            raise bad_request("token is required for TokenReview in authentication")
        found = self._tokens.review(spec.get("token", ""), spec.get("audiences") or [])
        if isinstance(found, str):
            body["status"] = {"user": {}, "error": found}
        else:
            body["status"] = {
                "authenticated": True,
                "user": user_object(found),
                "audiences": spec.get("audiences") or ["https://kubernetes.default.svc"],
            }
        return body

    @staticmethod
    def who_am_i(body: Obj, ctx: RequestContext) -> Obj:
        """Handle SelfSubjectReview."""
        body["metadata"] = {"creationTimestamp": ctx.now}
        body["status"] = {"userInfo": user_object(ctx.user)}
        return body

    def access(self, body: Obj, ctx: RequestContext) -> Obj:
        """Handle Self-, Local- and SubjectAccessReview: whether the user is allowed, and why."""
        spec = body.get("spec") or {}
        errors: list[FieldError] = []
        kind = body.get("kind", "")
        if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
            text = "at least one of user or group must be specified"
            errors.append(wrong("spec.user", "", text))
        resource = spec.get("resourceAttributes")
        other = spec.get("nonResourceAttributes")
        if resource is not None and other is not None:
            parts = {"Path": other.get("path", ""), "Verb": other.get("verb", "")}
            shown = Raw(orjson.dumps(parts).decode())
            text = "cannot be specified in combination with resourceAttributes"
            errors.append(wrong("spec.nonResourceAttributes", shown, text))
        elif resource is None and other is None:
            text = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            errors.append(wrong("spec.resourceAttributes", resource, text))
        if kind == "LocalSubjectAccessReview" and resource is not None:
            namespace = resource.get("namespace", "")
            if namespace != ctx.namespace:
                path = "spec.resourceAttributes.namespace"
                errors.append(wrong(path, namespace, "must match metadata.namespace"))
        if errors:
            raise invalid("authorization.k8s.io", "", "", errors)
        user = ctx.user
        if kind != "SelfSubjectAccessReview":
            user = UserInfo(spec.get("user", ""), groups=tuple(spec.get("groups") or ()))
        decision = self._authorizer.decide(user, _asked(resource, other))
        body["status"] = {"allowed": decision.is_allowed}
        if decision.reason:
            body["status"]["reason"] = decision.reason
        return body

    def rules(self, body: Obj, ctx: RequestContext) -> Obj:
        """Handle SelfSubjectRulesReview: what the requesting user may do in a namespace."""
        namespace = (body.pop("spec", None) or {}).get("namespace", "")
        if not namespace:
            raise bad_request("no namespace on request")
        rules = self._authorizer.rules_of(ctx.user, namespace)
        things = [_shown(rule, _OF_RESOURCES) for rule in rules if rule.get("resources")]
        paths = [_shown(rule, _OF_PATHS) for rule in rules if rule.get("nonResourceURLs")]
        body["spec"] = {}
        body["status"] = {
            "resourceRules": things,
            "nonResourceRules": paths,
            "incomplete": False,
        }
        return body


_OF_RESOURCES = ("verbs", "apiGroups", "resources", "resourceNames")
_OF_PATHS = ("verbs", "nonResourceURLs")


def _shown(rule: Rule, keys: tuple[str, ...]) -> Obj:
    return {key: rule[key] for key in keys if rule.get(key)}


def _asked(resource: Obj | None, other: Obj | None) -> Action:
    """Return what a review asks about."""
    if resource is None:
        path = other or {}
        return Action(path.get("verb", ""), path=path.get("path", ""))
    keys = ("verb", "group", "resource", "subresource", "namespace", "name")
    return Action(*(resource.get(key, "") for key in keys))


def user_object(user: UserInfo) -> Obj:
    """Return ``authentication/v1.UserInfo``."""
    shown: Obj = {"username": user.username}
    if user.uid:
        shown["uid"] = user.uid
    if user.groups:
        shown["groups"] = list(user.groups)
    if user.extra:
        shown["extra"] = {key: list(values) for key, values in user.extra.items()}
    return shown
