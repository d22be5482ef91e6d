"""Prevents escalation of rights when roles and bindings are written.

Users cannot grant rights that they do not have. ``admission`` calls it between completion and
validation. Source: ``k8s.io/kubernetes/pkg/registry/rbac`` (``escalation_check`` and the
``policybased`` storages).
"""

from __future__ import annotations

from collections.abc import Sequence

from localcluster.kinds.authorizer import GROUP, Authorizer
from localcluster.kinds.registry import ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.types.refusals import forbidden, go_quote, not_found
from localcluster.types.role_rules import EVERYTHING, Action, Rule, not_covered, rule_texts

_ROLES = {"Role": "roles", "ClusterRole": "clusterroles"}


def check_escalation(
    authorizer: Authorizer, info: ResourceInfo, obj: Obj, old: Obj | None, ctx: RequestContext
) -> None:
    """Raise 403 for a role or a binding that grants more than its author has.

    The verb ``escalate`` on roles, or ``bind`` on the bound role, allows granting more.
    """
    if info.group != GROUP or authorizer.is_almighty(ctx.user):
        return
    if info.plural.endswith("bindings"):
        _check_binding(authorizer, info, obj, ctx)
    else:
        _check_role(authorizer, info, obj, old, ctx)


def _check_role(
    authorizer: Authorizer, info: ResourceInfo, role: Obj, old: Obj | None, ctx: RequestContext
) -> None:
    in_path = "" if ctx.operation == "CREATE" else ctx.name
    escalate = Action("escalate", GROUP, info.plural, namespace=ctx.namespace, name=in_path)
    if authorizer.decide(ctx.user, escalate).is_allowed:
        return
    _check_rules(authorizer, info, role, role.get("rules") or [], ctx)
    if "aggregationRule" in role or "aggregationRule" in (old or {}):
        held = authorizer.rules_of(ctx.user, ctx.namespace)
        if not_covered(held, EVERYTHING):
            why = "must have cluster-admin privileges to use the aggregationRule"
            raise forbidden(GROUP, info.plural, role["metadata"].get("name", ""), why)


def _check_binding(
    authorizer: Authorizer, info: ResourceInfo, binding: Obj, ctx: RequestContext
) -> None:
    ref = binding.get("roleRef") or {}
    name = ref.get("name", "")
    plural = _ROLES.get(ref.get("kind", ""))
    if plural is None:
        return  # its validation refuses it
    bind = Action("bind", GROUP, plural, namespace=ctx.namespace, name=name)
    if authorizer.decide(ctx.user, bind).is_allowed:
        return
    try:
        rules = authorizer.rules_of_role(ref, ctx.namespace)
    except LookupError:
        raise not_found(GROUP, info.plural, name) from None
    _check_rules(authorizer, info, binding, rules, ctx)


def _check_rules(
    authorizer: Authorizer,
    info: ResourceInfo,
    obj: Obj,
    rules: Sequence[Rule],
    ctx: RequestContext,
) -> None:
    missing = not_covered(authorizer.rules_of(ctx.user, ctx.namespace), rules)
    if not missing:
        return
    groups = " ".join(go_quote(group) for group in ctx.user.groups)
    why = (
        f"user {go_quote(ctx.user.username)} (groups=[{groups}]) is attempting to grant RBAC "
        "permissions not currently held:\n" + "\n".join(rule_texts(missing))
    )
    raise forbidden(GROUP, info.plural, obj["metadata"].get("name", ""), why)
