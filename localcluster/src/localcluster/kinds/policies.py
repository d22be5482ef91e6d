"""ValidatingAdmissionPolicies: which of them match a request, and what they deny.

``admission`` calls it before the validating webhooks. It follows
``k8s.io/apiserver/pkg/admission/plugin/policy`` (``generic`` and ``validating``). A policy takes
effect as soon as it is stored, while a real server needs a moment. Nothing is written to an audit
log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from localcluster.kinds.admission_request import (
    Attributes,
    conditions_hold,
    environment,
    matches_rules,
    seen_as,
)
from localcluster.kinds.authorizer import Authorizer
from localcluster.kinds.policy_config import declared_variables
from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.kinds.webhook_config import CONDITION_VARIABLES
from localcluster.obj import Obj
from localcluster.types.cel import CelError, Eval, compile_expression
from localcluster.types.refusals import StatusError, forbidden

_GROUP = "admissionregistration.k8s.io"
POLICIES, BINDINGS = "validatingadmissionpolicies", "validatingadmissionpolicybindings"
_CODES = {"Forbidden": 403, "RequestEntityTooLarge": 413}


@dataclass(frozen=True, slots=True)
class _Validation:
    text: str
    holds: Eval
    message: str
    say: Eval | None
    reason: str

    def wording(self, env: Obj) -> str:
        """Return the text of ``messageExpression``.

        If it fails, or gives anything but one line of text, return the message.
        """
        if self.say is not None:
            try:
                said = self.say(env)
            except CelError:
                said = None
            if isinstance(said, str) and said.strip() and "\n" not in said:
                return said.strip()
        return self.message.strip() or f"failed expression: {self.text.strip()}"


@dataclass(frozen=True, slots=True)
class _Policy:
    """One policy with its compiled expressions."""

    name: str
    spec: Obj
    conditions: list[tuple[str, Eval]]
    variables: dict[str, Eval]
    validations: list[_Validation]


class _Values(dict[str, Any]):
    """The variables of a policy, each computed at its first use."""

    def __init__(self, variables: Mapping[str, Eval], env: Obj) -> None:
        super().__init__(dict.fromkeys(variables))
        self._open = dict(variables)
        self._env = {**env, "variables": self}

    def __getitem__(self, name: str) -> Any:
        evaluate = self._open.get(name)
        if evaluate is not None:
            try:
                self[name] = evaluate(self._env)
            except CelError as error:
                why = f'composited variable "{name}" fails to evaluate: {error}'
                raise CelError(why) from error
            del self._open[name]
        return super().__getitem__(name)


@dataclass(frozen=True, slots=True)
class _Denial:
    """Why a policy denies a request."""

    message: str
    reason: str = ""


@dataclass(slots=True)
class Policies:
    """All policies of one server, compiled at first use."""

    registry: Registry
    authorizer: Authorizer
    _compiled: dict[str, tuple[str, _Policy]] = field(default_factory=dict)

    def validate(self, at: Attributes) -> None:
        """Raise the first denial. Add a warning if a binding only warns."""
        if at.info.group == _GROUP or at.info.create_only is not None:
            return
        bindings = at.ctx.reader.list(_GROUP, BINDINGS)
        if not bindings:
            return
        refused: StatusError | None = None
        for policy, binding, denial in self._denials(at, bindings):
            names = f"'{policy}' with binding '{binding['metadata']['name']}'"
            actions = binding["spec"].get("validationActions") or ()
            if "Deny" in actions:
                refused = refused or _refusal(at, names, denial)
            elif "Warn" in actions:
                text = f"Validation failed for ValidatingAdmissionPolicy {names}: {denial.message}"
                at.ctx.warnings.append(text)
        if refused is not None:
            raise refused

    def _denials(self, at: Attributes, bindings: list[Obj]) -> Iterator[tuple[str, Obj, _Denial]]:
        """Yield the denials of each binding's policy, in the order of names."""
        for binding in sorted(bindings, key=lambda one: str(one["metadata"]["name"])):
            stored = at.ctx.reader.get(_GROUP, POLICIES, "", binding["spec"].get("policyName", ""))
            if stored is None:
                continue
            policy = self._policy(stored)
            seen = _concerned(policy.spec.get("matchConstraints") or {}, at, self.registry)
            narrowed = binding["spec"].get("matchResources")
            if seen is None or (narrowed and _concerned(narrowed, at, self.registry) is None):
                continue
            for denial in self._judge(policy, at, seen):
                yield policy.name, binding, denial

    def _policy(self, stored: Obj) -> _Policy:
        meta = stored["metadata"]
        name, version = meta["name"], meta.get("resourceVersion", "")
        cached = self._compiled.get(name)
        if cached is None or cached[0] != version:
            cached = self._compiled[name] = (version, _compiled(name, stored["spec"]))
        return cached[1]

    def _judge(self, policy: _Policy, at: Attributes, seen: ResourceInfo) -> Iterator[_Denial]:
        env = environment(at, seen, self.authorizer)
        is_failing = policy.spec.get("failurePolicy") != "Ignore"
        try:
            if not conditions_hold(policy.conditions, env):
                return
        except CelError as error:
            if is_failing:
                yield _Denial(str(error))
            return
        env["variables"] = _Values(policy.variables, env)
        for one in policy.validations:
            try:
                holds = one.holds(env)
            except CelError as error:
                if is_failing:
                    yield _Denial(f"expression '{one.text}' resulted in error: {error}")
                continue
            if holds is not True:
                yield _Denial(one.wording(env), one.reason)


def _concerned(match: Obj, at: Attributes, registry: Registry) -> ResourceInfo | None:
    """Return the resource as which the matcher sees the request, or None.

    A matcher without rules matches everything.
    """
    excluded = match.get("excludeResourceRules")
    if excluded and matches_rules({"rules": excluded}, at, at.info):
        return None
    matcher = {**match, "rules": match.get("resourceRules")}
    if not matcher["rules"]:
        every = {"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "scope": "*"}
        matcher["rules"] = [{**every, "resources": ["*/*", "*"]}]
    return seen_as(matcher, at, registry)


def _compiled(name: str, spec: Obj) -> _Policy:
    known, variables = declared_variables(spec.get("variables") or [])

    def compiled(text: str) -> Eval | None:
        return compile_expression(text, known) if text else None

    return _Policy(
        name,
        spec,
        [
            (one["expression"], compile_expression(one["expression"], CONDITION_VARIABLES))
            for one in spec.get("matchConditions") or ()
        ],
        variables,
        [
            _Validation(
                one["expression"],
                compile_expression(one["expression"], known),
                one.get("message", ""),
                compiled(one.get("messageExpression", "")),
                one.get("reason", ""),
            )
            for one in spec.get("validations") or ()
        ],
    )


def _refusal(at: Attributes, names: str, denial: _Denial) -> StatusError:
    message = f"ValidatingAdmissionPolicy {names} denied request: {denial.message}"
    refused = forbidden(at.info.group, at.info.plural, at.name, message)
    reason = denial.reason or "Invalid"
    details = {**(refused.details or {}), "causes": [{"message": message}]}
    return StatusError(_CODES.get(reason, 422), reason, refused.message, details=details)
