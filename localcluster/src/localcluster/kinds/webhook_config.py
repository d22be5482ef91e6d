"""Strategies of Mutating- and ValidatingWebhookConfigurations: defaults and validation.

A matchCondition that the evaluator cannot compile is refused here, on writes.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from localcluster.kinds.podspec_rules import unsupported
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.cel import CelSyntaxError, Variables, kinds, typed
from localcluster.types.cel.kinds import Type
from localcluster.types.refusals import (
    FieldError,
    all_wrong,
    duplicate,
    not_allowed,
    required,
    wrong,
)

_VERSION = {"group": kinds.STRING, "version": kinds.STRING}
_KIND = kinds.object_of("kubernetes.GroupVersionKind", {**_VERSION, "kind": kinds.STRING})
_RESOURCE = kinds.object_of(
    "kubernetes.GroupVersionResource", {**_VERSION, "resource": kinds.STRING}
)
_TEXTS = kinds.list_of(kinds.STRING)
_USER = kinds.object_of(
    "kubernetes.UserInfo",
    {
        "username": kinds.STRING,
        "uid": kinds.STRING,
        "groups": _TEXTS,
        "extra": kinds.map_of(kinds.STRING, _TEXTS),
    },
)
_REQUEST = kinds.object_of(
    "kubernetes.AdmissionRequest",
    {
        "kind": _KIND,
        "requestKind": _KIND,
        "resource": _RESOURCE,
        "requestResource": _RESOURCE,
        **dict.fromkeys(("subResource", "requestSubResource", "name", "namespace"), kinds.STRING),
        "operation": kinds.STRING,
        "userInfo": _USER,
        "dryRun": kinds.BOOL,
        "options": kinds.DYN,
    },
)
CONDITION_VARIABLES: dict[str, Type] = {
    **dict.fromkeys(("object", "oldObject", "namespaceObject"), kinds.DYN),
    "request": _REQUEST,
    "authorizer": kinds.AUTHORIZER,
}
"""What match conditions may read. Source: ``BuildRequestType`` of apiserver/pkg/admission."""
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")


class WebhookConfigStrategy(BaseStrategy):
    """admissionregistration.k8s.io/v1, mutating (or, by ``type_name``, validating)."""

    type_name = "MutatingWebhookConfiguration"
    is_namespaced = False
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Set defaults: Fail, Equivalent, Never, 10 s, all scopes, empty selectors."""
        for hook in obj.get("webhooks") or ():
            hook.setdefault("failurePolicy", "Fail")
            hook.setdefault("matchPolicy", "Equivalent")
            hook.setdefault("namespaceSelector", {})
            hook.setdefault("objectSelector", {})
            hook.setdefault("timeoutSeconds", 10)
            if self.type_name == "MutatingWebhookConfiguration":
                hook.setdefault("reinvocationPolicy", "Never")
            for rule in hook.get("rules") or ():
                rule.setdefault("scope", "*")
            service = (hook.get("clientConfig") or {}).get("service")
            if service is not None:
                service.setdefault("port", 443)

    def generation_relevant(self, obj: Obj) -> Any:
        """Return the webhooks."""
        return obj.get("webhooks")

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check each webhook, and that their names differ."""
        errors: list[FieldError] = []
        seen: set[str] = set()
        for index, hook in enumerate(obj.get("webhooks") or ()):
            path = f"webhooks[{index}]"
            errors += _validate_hook(hook, path)
            if hook.get("name") in seen:
                errors.append(duplicate(f"{path}.name", hook["name"]))
            seen.add(hook.get("name", ""))
        return errors


def _validate_hook(hook: Obj, path: str) -> list[FieldError]:
    name = hook.get("name", "")
    errors: list[FieldError] = []
    versions = hook.get("admissionReviewVersions") or []
    if not versions:
        text = "must specify one of v1, v1beta1"
        errors.append(required(f"{path}.admissionReviewVersions", text))
    elif "v1" not in versions:
        text = "must include at least one of v1 (the embedded cluster sends only v1)"
        errors.append(wrong(f"{path}.admissionReviewVersions", versions, text))
    texts = names.dns_subdomain(name)
    errors += all_wrong(f"{path}.name", name, texts)
    if not texts and len(name.split(".")) < 3:
        text = "should be a domain with at least three segments separated by dots"
        errors.append(wrong(f"{path}.name", name, text))
    for key, allowed in (
        ("failurePolicy", ("Fail", "Ignore")),
        ("matchPolicy", ("Equivalent", "Exact")),
        ("reinvocationPolicy", ("IfNeeded", "Never")),
    ):
        if key in hook and hook[key] not in allowed:
            errors.append(unsupported(f"{path}.{key}", hook[key], allowed))
    effects = hook.get("sideEffects")
    if not effects:
        text = "must specify one of None, NoneOnDryRun"
        errors.append(required(f"{path}.sideEffects", text))
    elif effects not in ("None", "NoneOnDryRun"):
        errors.append(unsupported(f"{path}.sideEffects", effects, ("None", "NoneOnDryRun")))
    timeout = hook.get("timeoutSeconds", 10)
    if not 1 <= timeout <= 30:
        text = "the timeout value must be between 1 and 30 seconds"
        errors.append(wrong(f"{path}.timeoutSeconds", timeout, text))
    errors += _validate_client(hook.get("clientConfig") or {}, f"{path}.clientConfig")
    for index, rule in enumerate(hook.get("rules") or ()):
        errors += validate_rule(rule, f"{path}.rules[{index}]")
    return errors + validate_conditions(hook, path)


def _validate_client(client: Obj, path: str) -> list[FieldError]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        text = "exactly one of url or service is required"
        return [required(path, text)]
    if url is None:
        return []
    form = "; desired format: https://host[/path]"
    parts = urlsplit(url)
    errors: list[FieldError] = []
    at = f"{path}.url"
    if parts.scheme != "https":
        text = "'https' is the only allowed URL scheme" + form
        errors.append(wrong(at, parts.scheme, text))
    if not parts.netloc:
        errors.append(wrong(at, parts.netloc, "host must be specified" + form))
    if parts.username or parts.password:
        text = "user information is not permitted in the URL"
        errors.append(wrong(at, parts.username or "", text))
    if parts.query or parts.fragment:
        text = "query parameters and fragments are not permitted in the URL"
        errors.append(wrong(at, parts.query or parts.fragment, text))
    return errors


def validate_rule(rule: Obj, path: str) -> list[FieldError]:
    """Return broken rules of a rule: which operations on which resources."""
    errors: list[FieldError] = []
    operations = rule.get("operations") or []
    if not operations:
        errors.append(required(f"{path}.operations"))
    if len(operations) > 1 and "*" in operations:
        text = "if '*' is present, must not specify other operations"
        errors.append(wrong(f"{path}.operations", operations, text))
    errors += [
        unsupported(f"{path}.operations[{i}]", operation, _OPERATIONS)
        for i, operation in enumerate(operations)
        if operation not in _OPERATIONS
    ]
    for key, words in (("apiGroups", "API groups"), ("apiVersions", "API versions")):
        values = rule.get(key) or []
        if not values:
            errors.append(required(f"{path}.{key}"))
        if len(values) > 1 and "*" in values:
            text = f"if '*' is present, must not specify other {words}"
            errors.append(wrong(f"{path}.{key}", values, text))
    if not rule.get("resources"):
        errors.append(required(f"{path}.resources"))
    scopes = ("*", "Cluster", "Namespaced")
    if rule.get("scope") not in scopes:
        errors.append(unsupported(f"{path}.scope", rule.get("scope"), scopes))
    return errors


def validate_conditions(hook: Obj, path: str) -> list[FieldError]:
    """Return broken rules of ``matchConditions``."""
    errors: list[FieldError] = []
    conditions = hook.get("matchConditions") or []
    if len(conditions) > 64:
        text = "must have at most 64 items"
        errors.append(not_allowed(f"{path}.matchConditions", text))
    for index, condition in enumerate(conditions):
        at = f"{path}.matchConditions[{index}]"
        if not condition.get("name"):
            errors.append(required(f"{at}.name"))
        expression = condition.get("expression", "")
        if not expression.strip():
            errors.append(required(f"{at}.expression"))
            continue
        if text := misfit(expression, CONDITION_VARIABLES):
            errors.append(wrong(f"{at}.expression", expression, text))
    return errors


def misfit(expression: str, variables: Variables, wanted: Type = kinds.BOOL) -> str:
    """Return why an expression does not have the ``wanted`` type, or an empty text."""
    try:
        made, _ = typed(expression, variables)
    except CelSyntaxError as error:
        return f"compilation failed: {error}"
    if made == wanted:
        return ""
    return f"must evaluate to {kinds.shown(wanted)} but got {kinds.shown(made)}"
