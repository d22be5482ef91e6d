"""Which webhooks a request concerns, in which order they are called, and what their patches do.

Follows ``k8s.io/apiserver/pkg/admission/plugin/webhook``: rules, selectors, matchConditions,
failure policy, one reinvocation.  Called by ``admission``.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass

from localcluster.kinds.actions import user_object
from localcluster.kinds.registry import Registry, RequestContext, ResourceInfo
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
from localcluster.types.label_match import match_label_selector
from localcluster.types.refusals import StatusError, forbidden, internal_error

_GROUP = "admissionregistration.k8s.io"
MUTATING = "mutatingwebhookconfigurations"
WARNINGS_BYTES_MAX, WARNING_BYTES_CUT = 4096, 256
VALIDATING = "validatingwebhookconfigurations"


@dataclass(slots=True)
class Hook:
    """One webhook of one configuration, its conditions compiled."""

    key: str
    spec: Obj
    conditions: list[tuple[str, Eval]]

    @property
    def name(self) -> str:
        """Its name, as messages show it."""
        return str(self.spec["name"])


@dataclass(slots=True)
class Attributes:
    """One request on its way through admission; ``obj`` changes as webhooks patch it."""

    info: ResourceInfo
    operation: str
    obj: Obj | None
    old: Obj | None
    ctx: RequestContext

    @property
    def subresource(self) -> str:
        """``status`` and the like, or ""."""
        return self.ctx.subresource

    @property
    def name(self) -> str:
        """The object's name; "" while it is to be generated."""
        if self.operation == "CREATE" and not self.subresource:
            return str(((self.obj or {}).get("metadata") or {}).get("name", ""))
        return self.ctx.name

    def kind(self) -> Obj:
        """The kind of ``object`` in the review."""
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
    """Whether one of the rules names this operation on this resource."""
    scope = "Namespaced" if info.namespaced and info.plural != "namespaces" else "Cluster"
    for rule in hook.get("rules") or ():
        if (
            _matches_word(rule.get("operations") or [], at.operation)
            and _matches_word(rule.get("apiGroups") or [], info.group)
            and _matches_word(rule.get("apiVersions") or [], info.version)
            and rule.get("scope", "*") in ("*", scope)
            and _matches_resource(rule.get("resources") or [], info.plural, at.subresource)
        ):
            return True
    return False


def _labels(obj: Obj | None) -> dict[str, str]:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def matches_namespace(hook: Obj, at: Attributes) -> bool:
    """namespaceSelector: of the namespace, or of the object if it is one."""
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
    """objectSelector: the new or the old object is enough."""
    selector = hook.get("objectSelector") or {}
    if not selector:
        return True
    return any(
        obj is not None and match_label_selector(selector, _labels(obj)) for obj in (at.obj, at.old)
    )


class Dispatcher:
    """Calls the webhooks of all configurations for a request."""

    def __init__(self, registry: Registry, client: WebhookClient) -> None:
        self._registry, self._client = registry, client
        self._compiled: dict[tuple[str, str], tuple[str, list[Hook]]] = {}

    def _hooks(self, plural: str, ctx: RequestContext) -> list[Hook]:
        """All hooks, in the order of their configurations' names."""
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
        """Call all mutating webhooks; ``at.obj`` is what they leave."""
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
        """Ask one webhook; whether it was called and whether it changed the object."""
        seen_as = self._seen_as(hook, at)
        if seen_as is None or not self._conditions_hold(hook, at):
            return False, False
        to_seen, from_seen = _conversion(at.info, seen_as)
        request = review_request(at, seen_as, to_seen)
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
        """Decode what a webhook made of the object: types, unknown fields, defaults."""
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
        """Ask all validating webhooks at once; the first refusal (in order) counts."""
        if at.info.group == _GROUP:
            return
        hooks = self._hooks(VALIDATING, at.ctx)
        concerned: list[tuple[Hook, ResourceInfo]] = []
        for hook in hooks:
            seen_as = self._seen_as(hook, at)
            if seen_as is not None and self._conditions_hold(hook, at):
                concerned.append((hook, seen_as))
        if not concerned:
            return
        results = await asyncio.gather(
            *(self._validate_by(hook, seen_as, at) for hook, seen_as in concerned)
        )
        for error in results:
            if error is not None:
                raise error

    async def _validate_by(
        self, hook: Hook, seen_as: ResourceInfo, at: Attributes
    ) -> StatusError | None:
        request = review_request(at, seen_as, _conversion(at.info, seen_as)[0])
        try:
            _check_service(hook.spec, at.ctx)
            verdict = await self._client.ask(hook.spec, request, is_mutating=False)
        except CallFailed as error:
            ignored = hook.spec.get("failurePolicy") == "Ignore"
            return None if ignored else call_error(hook.name, error)
        at.ctx.warnings.extend(_shortened(verdict.warnings))
        return None if verdict.is_allowed else denial(hook.name, verdict.status)

    # -- matching ----------------------------------------------------------------------------

    def _seen_as(self, hook: Hook, at: Attributes) -> ResourceInfo | None:
        """The resource as which the webhook sees the request, or None if it is not concerned."""
        if not matches_namespace(hook.spec, at) or not matches_object(hook.spec, at):
            return None
        if matches_rules(hook.spec, at, at.info):
            return at.info
        if hook.spec.get("matchPolicy") != "Equivalent":
            return None
        others = (i for i in self._registry if i is not at.info and i.storage == at.info.storage)
        return next((other for other in others if matches_rules(hook.spec, at, other)), None)

    @staticmethod
    def _conditions_hold(hook: Hook, at: Attributes) -> bool:
        if not hook.conditions:
            return True
        request = review_request(at, at.info, lambda obj: obj)
        namespace = at.ctx.namespace if at.info.namespaced else ""
        env = {
            "object": at.obj,
            "oldObject": at.old,
            "request": request,
            "namespaceObject": at.ctx.reader.get("", "namespaces", "", namespace)
            if namespace
            else None,
        }
        failure = ""
        for text, evaluate in hook.conditions:
            try:
                if evaluate(env) is False:
                    return False
            except CelError as error:
                failure = failure or f"expression '{text}' resulted in error: {error}"
        if not failure:
            return True
        if hook.spec.get("failurePolicy") == "Ignore":
            return False
        raise forbidden(at.info.group, at.info.plural, at.name, failure)


def _shortened(warnings: list[str]) -> list[str]:
    """Too much text is cut, as by ``warning.AddWarning``."""
    if sum(len(text) for text in warnings) <= WARNINGS_BYTES_MAX:
        return warnings
    return [text[:WARNING_BYTES_CUT] for text in warnings]


def _check_service(hook: Obj, ctx: RequestContext) -> None:
    """There is no service network here; say what the real server says, or why not."""
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


Convert = Callable[[Obj], Obj]


def _conversion(info: ResourceInfo, seen_as: ResourceInfo) -> tuple[Convert, Convert]:
    """To the version that the webhook wants, and back."""

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
    """``request`` of an AdmissionReview, without its uid."""
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


def apply_patch(obj: Obj, patch: list[Obj]) -> Obj:
    """Apply a webhook's JSON patch; 500 with the real server's words when it does not apply."""
    try:
        result = apply_operations(obj, patch)
    except PatchError as error:
        raise internal_error(str(error)) from error
    if not isinstance(result, dict):
        raise internal_error("json: cannot unmarshal the patched object")
    return result
