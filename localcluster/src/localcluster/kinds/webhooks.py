"""In which order webhooks are called, and what their patches do.

It follows ``k8s.io/apiserver/pkg/admission/plugin/webhook``: matchConditions, failure policy, one
reinvocation. ``admission_request`` decides which webhooks match a request. ``admission`` calls it.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass

from localcluster.kinds.admission_request import (
    Attributes,
    conditions_hold,
    conversion,
    environment,
    review_request,
    seen_as,
)
from localcluster.kinds.authorizer import Authorizer
from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.webhook_call import (
    CallFailed,
    WebhookClient,
    call_error,
    denial,
)
from localcluster.kinds.webhook_config import CONDITION_VARIABLES
from localcluster.obj import Obj
from localcluster.types.cel import CelError, Eval, compile_expression
from localcluster.types.decode import DecodeError, Decoder
from localcluster.types.json_patch import PatchError, apply_operations
from localcluster.types.refusals import StatusError, forbidden, internal_error

_GROUP = "admissionregistration.k8s.io"
MUTATING = "mutatingwebhookconfigurations"
WARNINGS_BYTES_MAX, WARNING_BYTES_CUT = 4096, 256
VALIDATING = "validatingwebhookconfigurations"


@dataclass(slots=True)
class Hook:
    """One webhook of one configuration, with its compiled conditions."""

    key: str
    spec: Obj
    conditions: list[tuple[str, Eval]]

    @property
    def name(self) -> str:
        """Return its name, as messages show it."""
        return str(self.spec["name"])


class Dispatcher:
    """Calls the webhooks of all configurations for a request."""

    def __init__(self, registry: Registry, client: WebhookClient, authorizer: Authorizer) -> None:
        self._registry, self._client, self._authorizer = registry, client, authorizer
        self._compiled: dict[tuple[str, str], tuple[str, list[Hook]]] = {}

    def _hooks(self, plural: str, ctx: RequestContext) -> list[Hook]:
        """Return all hooks, in the order of their configurations' names."""
        found: list[Hook] = []
        configurations = ctx.reader.list(_GROUP, plural)
        for config in sorted(configurations, key=lambda c: str(c["metadata"]["name"])):
            found.extend(self._compile(plural, config))
        return found

    def _compile(self, plural: str, config: Obj) -> list[Hook]:
        metadata = config["metadata"]
        key, version = (plural, metadata["name"]), metadata.get("resourceVersion", "")
        cached = self._compiled.get(key)
        if cached is not None and cached[0] == version:
            return cached[1]
        hooks = [
            Hook(
                f"{plural}/{metadata['name']}/{spec['name']}",
                spec,
                [
                    (c["expression"], compile_expression(c["expression"], CONDITION_VARIABLES))
                    for c in spec.get("matchConditions") or ()
                ],
            )
            for spec in config.get("webhooks") or ()
        ]
        self._compiled[key] = (version, hooks)
        return hooks

    # -- mutating --------------------------------------------------------------------------------

    async def mutate(self, at: Attributes) -> None:
        """Call all mutating webhooks. ``at.obj`` becomes their result."""
        if at.info.group == _GROUP:
            return
        hooks = self._hooks(MUTATING, at.ctx)
        if not hooks:
            return
        invoked: set[str] = set()
        again: set[str] = set()
        for is_second in (False, True):
            for hook in hooks:
                if is_second and hook.key not in again:
                    continue
                called, has_changed = await self._mutate_by(hook, at)
                if has_changed:
                    again |= invoked
                if called and hook.spec.get("reinvocationPolicy") == "IfNeeded":
                    invoked.add(hook.key)
            if not again:
                return

    async def _mutate_by(self, hook: Hook, at: Attributes) -> tuple[bool, bool]:
        """Call one webhook. Return whether it was called, and whether it changed the object."""
        seen = seen_as(hook.spec, at, self._registry)
        if seen is None or not self._conditions_hold(hook, at):
            return False, False
        to_seen, from_seen = conversion(at.info, seen)
        request = review_request(at, seen, to_seen)
        try:
            _check_service(hook.spec, at.ctx)
            verdict = await self._client.ask(hook.spec, request, is_mutating=True)
        except CallFailed as error:
            if hook.spec.get("failurePolicy") == "Ignore":
                return True, False
            raise call_error(hook.name, error) from error
        at.ctx.warnings.extend(_shortened(verdict.warnings))
        if not verdict.is_allowed:
            refusal = denial(hook.name, verdict.status)
            refusal.warnings = list(at.ctx.warnings)
            raise refusal
        if not verdict.patch or at.obj is None:
            return True, False
        before = at.obj
        patched = from_seen(apply_patch(to_seen(copy.deepcopy(before)), verdict.patch))
        self._clean(patched, at)
        at.obj = patched
        return True, patched != before

    @staticmethod
    def _clean(patched: Obj, at: Attributes) -> None:
        """Decode the object that a webhook has changed: types, unknown fields, defaults."""
        sub = at.info.subresources.get(at.subresource)
        if sub is not None and sub.how not in ("status", "update"):
            return
        strategy = at.info.strategy
        if at.info.is_custom:
            quiet = copy.copy(at.ctx)
            quiet.field_validation, quiet.warnings = "Ignore", []
            strategy.decode(patched, quiet)
            return
        try:
            Decoder().clean_object(patched, at.info.node)
        except DecodeError as error:
            raise internal_error(str(error)) from error
        strategy.default(patched)

    # -- validating --------------------------------------------------------------------------------

    async def validate(self, at: Attributes) -> None:
        """Call all validating webhooks concurrently. The first refusal (in order) counts."""
        if at.info.group == _GROUP:
            return
        hooks = self._hooks(VALIDATING, at.ctx)
        concerned: list[tuple[Hook, ResourceInfo]] = []
        for hook in hooks:
            seen = seen_as(hook.spec, at, self._registry)
            if seen is not None and self._conditions_hold(hook, at):
                concerned.append((hook, seen))
        if not concerned:
            return
        results = await asyncio.gather(
            *(self._validate_by(hook, seen, at) for hook, seen in concerned)
        )
        for error in results:
            if error is not None:
                raise error

    async def _validate_by(
        self, hook: Hook, seen: ResourceInfo, at: Attributes
    ) -> StatusError | None:
        request = review_request(at, seen, conversion(at.info, seen)[0])
        try:
            _check_service(hook.spec, at.ctx)
            verdict = await self._client.ask(hook.spec, request, is_mutating=False)
        except CallFailed as error:
            ignored = hook.spec.get("failurePolicy") == "Ignore"
            return None if ignored else call_error(hook.name, error)
        at.ctx.warnings.extend(_shortened(verdict.warnings))
        return None if verdict.is_allowed else denial(hook.name, verdict.status)

    # -- matching ----------------------------------------------------------------------------

    def _conditions_hold(self, hook: Hook, at: Attributes) -> bool:
        if not hook.conditions:
            return True
        env = environment(at, at.info, self._authorizer)
        try:
            return conditions_hold(hook.conditions, env)
        except CelError as error:
            if hook.spec.get("failurePolicy") == "Ignore":
                return False
            raise forbidden(at.info.group, at.info.plural, at.name, str(error)) from error


def _shortened(warnings: list[str]) -> list[str]:
    """Cut warnings that are too long in total, as ``warning.AddWarning`` does."""
    if sum(len(text) for text in warnings) <= WARNINGS_BYTES_MAX:
        return warnings
    return [text[:WARNING_BYTES_CUT] for text in warnings]


def _check_service(hook: Obj, ctx: RequestContext) -> None:
    """Raise CallFailed for a service, because there is no service network here.

    The message is the real server's, or says why.
    """
    service = hook["clientConfig"].get("service")
    if service is None:
        return
    name, namespace = service.get("name", ""), service.get("namespace", "")
    url = (
        f"https://{name}.{namespace}.svc:{service.get('port', 443)}{service.get('path') or '/'}"
        f"?timeout={hook.get('timeoutSeconds', 10)}s"
    )
    why = f'service "{name}" not found'
    if ctx.reader.get("", "services", namespace, name) is not None:
        why = "the embedded cluster has no service network; use clientConfig.url"
    raise CallFailed(f'failed to call webhook: Post "{url}": {why}')


def apply_patch(obj: Obj, patch: list[Obj]) -> Obj:
    """Apply a webhook's JSON patch. Raise 500 in the real server's words if it fails."""
    try:
        result = apply_operations(obj, patch)
    except PatchError as error:
        raise internal_error(str(error)) from error
    if not isinstance(result, dict):
        raise internal_error("json: cannot unmarshal the patched object")
    return result
