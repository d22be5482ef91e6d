"""Strategies of ValidatingAdmissionPolicies and their bindings: defaults and validation.

``policies`` evaluates them. Parameters and audit annotations are not served, and are refused on
writes. Source: ``k8s.io/kubernetes/pkg/apis/admissionregistration/validation``.
"""

from __future__ import annotations

from localcluster.kinds.podspec_rules import unsupported
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.kinds.webhook_config import (
    CONDITION_VARIABLES,
    misfit,
    validate_conditions,
    validate_rule,
)
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.cel import CelSyntaxError, Eval, kinds, typed
from localcluster.types.cel.kinds import Type
from localcluster.types.refusals import (
    FieldError,
    duplicate,
    not_served,
    required,
    wrong,
)

_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_ACTIONS = ("Deny", "Warn", "Audit")
_NO_EXPRESSION = "expression is not specified"
_BOTH = (
    "must not contain both Deny and Warn (repeating the same validation failure information in the "
    "API response and headers serves no purpose)"
)


class PolicyStrategy(BaseStrategy):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy."""

    type_name = "ValidatingAdmissionPolicy"
    is_namespaced = False
    has_status = True
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Set defaults: Fail, and for matching Equivalent, all scopes, empty selectors."""
        spec = obj.get("spec") or {}
        spec.setdefault("failurePolicy", "Fail")
        default_match(spec.get("matchConstraints"))

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check that it matches something and that its expressions compile."""
        spec = obj.get("spec") or {}
        for key, what in (("paramKind", "parameters"), ("auditAnnotations", "audit annotations")):
            if spec.get(key):
                raise not_served(f"{what} of ValidatingAdmissionPolicies")
        errors: list[FieldError] = []
        if spec.get("failurePolicy") not in ("Fail", "Ignore"):
            value = spec.get("failurePolicy")
            errors.append(unsupported("spec.failurePolicy", value, ("Fail", "Ignore")))
        match = spec.get("matchConstraints")
        if match is None:
            errors.append(required("spec.matchConstraints"))
        else:
            errors += _match_errors(match, "spec.matchConstraints", needs_rules=True)
        errors += validate_conditions(spec, "spec")
        variables, found = _declared(spec.get("variables") or [])
        errors += found
        validations = spec.get("validations") or []
        if not validations:
            text = "validations or auditAnnotations must contain at least one item"
            errors += (required(f"spec.{key}", text) for key in ("validations", "auditAnnotations"))
        for index, one in enumerate(validations):
            errors += _validation_errors(one, f"spec.validations[{index}]", variables)
        return errors


class PolicyBindingStrategy(BaseStrategy):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding."""

    type_name = "ValidatingAdmissionPolicyBinding"
    is_namespaced = False
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Set the same defaults for matching as for policies."""
        default_match((obj.get("spec") or {}).get("matchResources"))

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check that it names a policy and its actions."""
        spec = obj.get("spec") or {}
        if spec.get("paramRef"):
            raise not_served("parameters of ValidatingAdmissionPolicies")
        errors: list[FieldError] = []
        name = spec.get("policyName", "")
        if not name:
            errors.append(required("spec.policyName"))
        else:
            errors += (wrong("spec.policyName", name, text) for text in names.dns_subdomain(name))
        if spec.get("matchResources") is not None:
            errors += _match_errors(
                spec["matchResources"], "spec.matchResources", needs_rules=False
            )
        return errors + _action_errors(spec.get("validationActions") or [])


def default_match(match: Obj | None) -> None:
    """Set the defaults of a match."""
    if match is None:
        return
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    for key in ("resourceRules", "excludeResourceRules"):
        for rule in match.get(key) or ():
            rule.setdefault("scope", "*")


class VariableError(ValueError):
    """The variable with this index does not compile."""

    def __init__(self, index: int, text: str) -> None:
        super().__init__(text)
        self.index = index


def declared_variables(variables: list[Obj]) -> tuple[dict[str, Type], dict[str, Eval]]:
    """Return the variables that a policy's expressions may read, and its own ones compiled.

    Each variable may read those before it. Raises VariableError.
    """
    known = dict(CONDITION_VARIABLES)
    own: dict[str, Type] = {}
    made: dict[str, Eval] = {}
    for index, one in enumerate(variables):
        known["variables"] = kinds.object_of("kubernetes.variables", dict(own))
        try:
            own[one["name"]], made[one["name"]] = typed(one["expression"], known)
        except CelSyntaxError as error:
            raise VariableError(index, f"compilation failed: {error}") from error
    if variables:
        known["variables"] = kinds.object_of("kubernetes.variables", own)
    return known, made


def _declared(variables: list[Obj]) -> tuple[dict[str, Type], list[FieldError]]:
    """Return the variables and the errors. Only the first wrong variable is reported."""
    for index, one in enumerate(variables):
        for key, text in (("name", "name is not specified"), ("expression", _NO_EXPRESSION)):
            if not one.get(key, "").strip():
                path = f"spec.variables[{index}].{key}"
                return dict(CONDITION_VARIABLES), [required(path, text)]
    try:
        return declared_variables(variables)[0], []
    except VariableError as error:
        path = f"spec.variables[{error.index}].expression"
        value = variables[error.index]["expression"]
        known, _ = declared_variables(variables[: error.index])
        return known, [wrong(path, value, str(error))]


def _validation_errors(one: Obj, path: str, variables: dict[str, Type]) -> list[FieldError]:
    errors: list[FieldError] = []
    for key, kind in (("expression", kinds.BOOL), ("messageExpression", kinds.STRING)):
        text = one.get(key, "")
        if not text.strip():
            if key == "expression":
                errors.append(required(f"{path}.{key}", _NO_EXPRESSION))
        elif why := misfit(text, variables, kind):
            errors.append(wrong(f"{path}.{key}", text, why))
    if one.get("reason") and one["reason"] not in _REASONS:
        errors.append(unsupported(f"{path}.reason", one["reason"], _REASONS))
    return errors


def _match_errors(match: Obj, path: str, *, needs_rules: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    if match.get("matchPolicy") not in ("Equivalent", "Exact"):
        value = match.get("matchPolicy")
        errors.append(unsupported(f"{path}.matchPolicy", value, ("Equivalent", "Exact")))
    if needs_rules and not match.get("resourceRules"):
        errors.append(required(f"{path}.resourceRules"))
    for key in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(key) or ()):
            errors += validate_rule(rule, f"{path}.{key}[{index}]")
    return errors


def _action_errors(actions: list[str]) -> list[FieldError]:
    path = "spec.validationActions"
    if not actions:
        return [required(path, "at least one validation action is required")]
    errors = [
        unsupported(f"{path}[{index}]", action, _ACTIONS)
        for index, action in enumerate(actions)
        if action not in _ACTIONS
    ]
    errors += (
        duplicate(f"{path}[{index}]", action)
        for index, action in enumerate(actions)
        if action in actions[:index]
    )
    if {"Deny", "Warn"} <= set(actions):
        errors.append(wrong(path, actions, _BOTH))
    return errors
