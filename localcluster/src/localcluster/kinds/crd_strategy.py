"""Strategy of CustomResourceDefinitions: defaults and validation of definitions.

Rules and texts follow ``apiextensions-apiserver/pkg/apis/apiextensions/validation``. What the
embedded cluster cannot do (conversion webhooks, some of CEL) is refused here with a clear message.
"""

from __future__ import annotations

import re

import orjson

from localcluster.kinds.crd_rules import (
    RuleTypeError,
    compile_findings,
    mentions_old,
    variables_of,
)
from localcluster.kinds.crd_schema import StructuralSchema
from localcluster.kinds.meta import immutable
from localcluster.kinds.podspec_rules import unsupported
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.jsonpath import JsonPathError, compile_path
from localcluster.types.refusals import (
    INTERNAL,
    FieldError,
    Raw,
    all_wrong,
    not_allowed,
    required,
    wrong,
)

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_RULE_REASONS = (
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
)
_COLUMN_TYPES = ("boolean", "date", "integer", "number", "string")


class DefinitionStrategy(BaseStrategy):
    """apiextensions.k8s.io/v1 CustomResourceDefinition."""

    type_name = "CustomResourceDefinition"
    is_namespaced = False
    has_status = True
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Derive singular and list kind from the kind. Set no conversion."""
        spec = obj["spec"]
        accepted = spec.setdefault("names", {})
        kind = accepted.get("kind", "")
        if kind:
            accepted.setdefault("singular", kind.lower())
            accepted.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {}).setdefault("strategy", "None")

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Set a status that is empty except for the stored version."""
        obj["metadata"]["generation"] = 1
        stored = [v["name"] for v in obj["spec"].get("versions") or () if v.get("storage")]
        obj["status"] = {
            "conditions": None,
            "acceptedNames": {"plural": "", "kind": ""},
            "storedVersions": stored or None,
        }

    def prepare_update(self, new: Obj, old: Obj, subresource: str, ctx: RequestContext) -> None:
        """Add a new storage version to those that have been stored."""
        super().prepare_update(new, old, subresource, ctx)
        status = dict(new.get("status") or {})
        stored = list(status.get("storedVersions") or [])
        for version in new["spec"].get("versions") or ():
            if version.get("storage") and version["name"] not in stored:
                stored.append(version["name"])
        status["storedVersions"] = stored or None
        new["status"] = status

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check name, scope, versions, schemas, columns."""
        spec = obj["spec"]
        wanted = f"{spec['names'].get('plural', '')}.{spec.get('group', '')}"
        errors: list[FieldError] = []
        if obj["metadata"].get("name") != wanted:
            text = 'must be spec.names.plural+"."+spec.group'
            errors.append(wrong("metadata.name", obj["metadata"].get("name"), text))
        errors += _validate_spec(spec)
        if not (obj.get("status") or {}).get("storedVersions"):
            text = "must have at least one stored version"
            errors.append(wrong("status.storedVersions", None, text))
        return errors

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse changes of group, scope and accepted names."""
        errors = self.validate(new, ctx)
        for key in ("group", "scope"):
            if new["spec"].get(key) != old["spec"].get(key):
                errors.append(immutable(f"spec.{key}", new["spec"].get(key)))
        for key in ("plural", "kind"):
            if new["spec"]["names"].get(key) != old["spec"]["names"].get(key):
                errors.append(immutable(f"spec.names.{key}", new["spec"]["names"].get(key)))
        return errors


def _validate_spec(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    group = spec.get("group", "")
    if not group:
        errors.append(required("spec.group"))
    elif "." not in group:
        text = "should be a domain with at least one dot"
        errors.append(wrong("spec.group", group, text))
    else:
        errors += all_wrong("spec.group", group, names.dns_subdomain(group))
    scopes = ("Cluster", "Namespaced")
    if not spec.get("scope"):
        errors.append(required("spec.scope"))
    elif spec["scope"] not in scopes:
        errors.append(unsupported("spec.scope", spec["scope"], scopes))
    errors += _validate_versions(spec)
    errors += _validate_names(spec["names"])
    if spec.get("preserveUnknownFields"):
        text = (
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in "
            "spec.versions[*].schema instead"
        )
        errors.append(wrong("spec.preserveUnknownFields", True, text))
    if spec["conversion"]["strategy"] != "None":
        text = "the embedded cluster serves only strategy None"
        path = "spec.conversion.strategy"
        errors.append(wrong(path, spec["conversion"]["strategy"], text))
    return errors


def _validate_names(accepted: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in ("plural", "singular", "kind", "listKind"):
        value = accepted.get(key, "")
        if not value:
            errors.append(required(f"spec.names.{key}"))
            continue
        checked = value if key in ("plural", "singular") else value.lower()
        errors += all_wrong(f"spec.names.{key}", value, names.dns_label_1035(checked))
    if accepted.get("kind") and accepted.get("kind") == accepted.get("listKind"):
        text = "kind and listKind may not be the same"
        errors.append(wrong("spec.names.listKind", accepted["listKind"], text))
    return errors


def _validate_versions(spec: Obj) -> list[FieldError]:
    versions = spec.get("versions") or []
    errors: list[FieldError] = []
    stored = sum(1 for v in versions if v.get("storage"))
    seen: set[str] = set()
    for index, version in enumerate(versions):
        name = version.get("name", "")
        path = f"spec.versions[{index}]"
        errors += all_wrong(f"{path}.name", name, names.dns_label_1035(name))
        if name in seen:
            errors.append(wrong(f"{path}.name", name, "must contain unique names"))
        seen.add(name)
    if stored != 1:
        text = "must have exactly one version marked as storage version"
        errors.append(wrong("spec.versions", _internal(versions), text))
    for index, version in enumerate(versions):
        errors += _validate_version(version, index, versions)
    return errors


def _internal(versions: list[Obj]) -> Raw:
    """Return versions as the server's internal type prints them."""
    shown = [
        {
            "Name": v.get("name", ""),
            "Served": v.get("served", False),
            "Storage": v.get("storage", False),
            "Deprecated": v.get("deprecated", False),
            "DeprecationWarning": v.get("deprecationWarning"),
            "Schema": None,
            "Subresources": None,
            "AdditionalPrinterColumns": None,
            "SelectableFields": None,
        }
        for v in versions
    ]
    return Raw(orjson.dumps(shown).decode())


def _common(versions: list[Obj], key: str) -> bool:
    """Return whether all versions have an equal value.

    The internal type keeps (and names) such values at the top.
    """
    return all(v.get(key) == versions[0].get(key) for v in versions)


def _validate_version(version: Obj, index: int, versions: list[Obj]) -> list[FieldError]:
    at = f"spec.versions[{index}]"
    is_first = index == 0
    errors: list[FieldError] = []
    schema = (version.get("schema") or {}).get("openAPIV3Schema")
    is_common = _common(versions, "schema")
    if schema is None:
        path = f"{at}.schema.openAPIV3Schema"
        errors.append(required(path, "schemas are required"))
    elif is_first or not is_common:
        path = "spec.validation.openAPIV3Schema" if is_common else f"{at}.schema.openAPIV3Schema"
        errors += _validate_root(schema, path)
    is_common = _common(versions, "additionalPrinterColumns")
    if is_first or not is_common:
        where = "spec" if is_common else at
        for position, column in enumerate(version.get("additionalPrinterColumns") or ()):
            errors += _validate_column(column, f"{where}.additionalPrinterColumns[{position}]")
    is_common = _common(versions, "subresources")
    if is_first or not is_common:
        errors += _validate_scale(version, f"{'spec' if is_common else at}.subresources.scale")
    where = "spec" if _common(versions, "selectableFields") else at
    for position, entry in enumerate(version.get("selectableFields") or ()):
        path, text = f"{where}.selectableFields[{position}].jsonPath", entry.get("jsonPath", "")
        found = _validate_path(text, path)
        if not found and not _is_specified(schema or {}, text):
            why = "is an invalid path: does not refer to a valid field"
            found = [wrong(path, text, why)]
        errors += found
    return errors


def _validate_scale(version: Obj, path: str) -> list[FieldError]:
    scale = (version.get("subresources") or {}).get("scale")
    if scale is None:
        return []
    wanted = ("specReplicasPath", "statusReplicasPath")
    return [required(f"{path}.{key}") for key in wanted if not scale.get(key)]


def _is_specified(schema: Obj, path: str) -> bool:
    """Return whether a simple path such as ``.spec.host`` leads to a field of the schema."""
    for key in path.removeprefix(".").split("."):
        below = schema.get("properties") or {}
        if key not in below:
            return False
        schema = below[key]
    return True


def _validate_column(column: Obj, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if not column.get("name"):
        errors.append(required(f"{path}.name"))
    if column.get("type") not in _COLUMN_TYPES:
        text = f"must be one of {','.join(_COLUMN_TYPES)}"
        errors.append(wrong(f"{path}.type", column.get("type", ""), text))
    return errors + _validate_path(column.get("jsonPath", ""), f"{path}.JSONPath")


def _validate_path(text: str, path: str) -> list[FieldError]:
    if not text:
        return [required(path)]
    if not text.startswith("."):
        why = "must be a simple json path starting with ."
        return [wrong(path, text, why)]
    try:
        compile_path(text)
    except JsonPathError as error:
        return [wrong(path, text, str(error))]
    return []


def _validate_root(schema: Obj, path: str) -> list[FieldError]:
    if schema.get("type") != "object":
        if "type" not in schema:
            return [required(f"{path}.type", "must not be empty at the root")]
        return [wrong(f"{path}.type", schema["type"], "must be object at the root")]
    metadata = (schema.get("properties") or {}).get("metadata") or {}
    errors: list[FieldError] = []
    if set(metadata.get("properties") or {}) - {"name", "generateName"}:
        text = (
            "must not specify anything other than name and generateName, but metadata is "
            "implicitly specified"
        )
        errors.append(not_allowed(f"{path}.properties[metadata]", text))
    errors += _validate_schema(schema, path)
    errors = errors or _compile_rules(schema, path, is_root=True)
    return errors or _validate_defaults(schema, path)


def _validate_schema(schema: Obj, path: str) -> list[FieldError]:
    """Check that the schema is structural.

    Each specified value needs a type. Rules and patterns must compile.
    """
    errors = _validate_words(schema, path)
    for key in sorted(schema.get("properties") or {}):
        errors += _validate_child(
            schema["properties"][key], f"{path}.properties[{key}]", "specified object fields"
        )
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        if schema.get("properties"):
            text = "additionalProperties and properties are mutual exclusive"
            errors.append(not_allowed(f"{path}.additionalProperties", text))
        errors += _validate_child(more, f"{path}.additionalProperties", "specified object fields")
    items = schema.get("items")
    if isinstance(items, dict):
        errors += _validate_child(items, f"{path}.items", "specified array items")
    elif schema.get("type") == "array":
        errors.append(required(f"{path}.items", "must be specified"))
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get(
        "x-kubernetes-list-map-keys"
    ):
        text = "must not be empty if x-kubernetes-list-type is map"
        errors.append(required(f"{path}.x-kubernetes-list-map-keys", text))
    return errors + _validate_rules(schema, path)


def _validate_words(schema: Obj, path: str) -> list[FieldError]:
    """Check one level of a schema by itself."""
    errors: list[FieldError] = []
    if schema.get("type") and schema["type"] not in _TYPES:
        errors.append(unsupported(f"{path}.type", schema["type"], _TYPES))
    if "$ref" in schema:
        text = "$ref is not supported"
        errors.append(not_allowed(f"{path}.$ref", text))
    if schema.get("uniqueItems"):
        text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(not_allowed(f"{path}.uniqueItems", text))
    pattern = schema.get("pattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        text = (
            "must be a valid regular expression, but isn't: error parsing regexp: "
            f"{error.msg}: `{pattern}`"
        )
        errors.append(wrong(f"{path}.pattern", pattern, text))
    return errors


def _validate_defaults(schema: Obj, path: str) -> list[FieldError]:
    """Check that each default fits its own schema.

    It is called for a schema without other errors.
    """
    errors: list[FieldError] = []
    if "default" in schema:
        found = StructuralSchema(schema)
        errors += found.validate_default(schema["default"], f"{path}.default")
    for key, child in sorted((schema.get("properties") or {}).items()):
        errors += _validate_defaults(child, f"{path}.properties[{key}]")
    for key in ("items", "additionalProperties"):
        if isinstance(child := schema.get(key), dict):
            errors += _validate_defaults(child, f"{path}.{key}")
    return errors


def _validate_child(schema: Obj, path: str, where: str) -> list[FieldError]:
    errors = _validate_schema(schema, path)
    has_free_type = schema.get("x-kubernetes-int-or-string") or schema.get(
        "x-kubernetes-preserve-unknown-fields"
    )
    if not schema.get("type") and not has_free_type:
        text = f"must not be empty for {where}"
        errors.append(required(f"{path}.type", text))
    return errors


def _validate_rules(schema: Obj, path: str) -> list[FieldError]:
    """Check an entry by itself. Whether its expressions fit the schema is checked later."""
    errors: list[FieldError] = []
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        at = f"{path}.x-kubernetes-validations[{index}]"
        if not rule.get("rule", "").strip():
            errors.append(required(f"{at}.rule", "rule is not specified"))
            continue
        errors += _validate_wording(rule, at)
        if rule.get("optionalOldSelf") is not None and not mentions_old(rule["rule"]):
            text = "may not be set if oldSelf is not used in rule"
            shown = rule["optionalOldSelf"]
            errors.append(wrong(f"{at}.optionalOldSelf", shown, text))
        reason = rule.get("reason")
        if reason is not None and reason not in _RULE_REASONS:
            errors.append(unsupported(f"{at}.reason", reason, _RULE_REASONS))
        where = rule.get("fieldPath")
        if where and not (where.startswith(".") and _is_specified(schema, where)):
            errors.append(wrong(f"{at}.fieldPath", where, "must be a valid path"))
    return errors


def _validate_wording(rule: Obj, at: str) -> list[FieldError]:
    errors: list[FieldError] = []
    message, wording = rule.get("message") or "", rule.get("messageExpression") or ""
    if message and not message.strip():
        text = "must be non-empty if specified"
        errors.append(wrong(f"{at}.message", message, text))
    elif "\n" in message:
        text = "must not contain line breaks"
        errors.append(wrong(f"{at}.message", message, text))
    if wording and not wording.strip():
        text = "messageExpression must be non-empty if specified"
        errors.append(required(f"{at}.messageExpression", text))
    return errors


def _compile_rules(
    schema: Obj, path: str, *, is_root: bool = False, lost: str = ""
) -> list[FieldError]:
    """Check that expressions compile.

    ``lost`` is the list below which old items are not known.
    """
    is_root = is_root or bool(schema.get("x-kubernetes-embedded-resource"))
    errors: list[FieldError] = []
    for index, rule in enumerate(schema.get("x-kubernetes-validations") or ()):
        at = f"{path}.x-kubernetes-validations[{index}]"
        try:
            variables = variables_of(schema, rule, is_root=is_root)
        except RuleTypeError as error:
            text = (
                "internal error: failed to construct type information for x-kubernetes-validations"
            )
            where = at.rpartition("[")[0]
            return [FieldError(INTERNAL, where, None, f"{text} rules: {error}")]
        for key, why in compile_findings(rule, variables):
            errors.append(wrong(f"{at}.{key}", _internal_rule(rule), why))
        if lost and mentions_old(rule["rule"]):
            text = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
            errors.append(wrong(f"{at}.rule", rule["rule"], f"{text} {lost}"))
    for key, child in sorted((schema.get("properties") or {}).items()):
        errors += _compile_rules(child, f"{path}.properties[{key}]", lost=lost)
    if isinstance(more := schema.get("additionalProperties"), dict):
        errors += _compile_rules(more, f"{path}.additionalProperties", lost=lost)
    if isinstance(items := schema.get("items"), dict):
        is_map = schema.get("x-kubernetes-list-type") == "map"
        errors += _compile_rules(items, f"{path}.items", lost=lost or ("" if is_map else path))
    return errors


def _internal_rule(rule: Obj) -> Raw:
    """Return a rule as the server's internal type prints it."""
    shown = {
        "Rule": rule.get("rule", ""),
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    escapes = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
    return Raw(orjson.dumps(shown).decode().translate(escapes))
