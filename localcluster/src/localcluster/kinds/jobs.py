"""The strategy of batch/v1 Jobs: which fields may change when.

Mutability follows ``ValidateJobUpdate`` of 1.36. The recordings job-mutability-* test it.
"""

from __future__ import annotations

import copy

import orjson

from localcluster.kinds.job_status import validate_job_status
from localcluster.kinds.meta import immutable
from localcluster.kinds.podspec import default_template
from localcluster.kinds.podspec_rules import (
    not_negative,
    unsupported,
    validate_template,
)
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.label_match import match_label_selector
from localcluster.types.refusals import (
    OMIT,
    FieldError,
    Raw,
    all_wrong,
    required,
    sorted_map,
    sorted_selector,
    wrong,
)

UID_LABEL, OLD_UID_LABEL = "batch.kubernetes.io/controller-uid", "controller-uid"
NAME_LABEL, OLD_NAME_LABEL = "batch.kubernetes.io/job-name", "job-name"
_INDEXED_PARALLELISM_MAX = 100_000
_TEMPLATE = "spec.template"
_LABELS_PATH = "spec.template.metadata.labels"
_SUSPENDED_KEYS = ("nodeSelector", "tolerations", "schedulingGates")
_DOTS_WARNING = (
    "metadata.name: this is used in Pod names and hostnames, which can result in surprising "
    "behavior; a DNS label is recommended: "
)


class JobStrategy(BaseStrategy):
    """batch/v1 Job."""

    type_name = "Job"
    has_status = True
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Set the defaults of a Job (``pkg/apis/batch/v1/defaults.go``)."""
        spec = obj["spec"]
        if "completions" not in spec and "parallelism" not in spec:
            spec["completions"] = spec["parallelism"] = 1
        spec.setdefault("parallelism", 1)
        if "backoffLimit" not in spec:
            spec["backoffLimit"] = 2**31 - 1 if "backoffLimitPerIndex" in spec else 6
        spec.setdefault("completionMode", "NonIndexed")
        spec.setdefault("suspend", False)
        spec.setdefault("manualSelector", False)
        if "podReplacementPolicy" not in spec:
            spec["podReplacementPolicy"] = (
                "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
            )
        for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
            for pattern in rule.get("onPodConditions") or ():
                if not pattern.get("status"):
                    pattern["status"] = "True"
        default_template(spec.setdefault("template", {}))
        labels = (spec["template"].get("metadata") or {}).get("labels")
        if labels and not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(labels)

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Generate selector and labels unless the selector is manual."""
        super().prepare_create(obj, ctx)
        generate_selector(obj)
        texts = names.dns_label(obj["metadata"].get("name", ""))
        if texts:
            ctx.warnings.append(f"{_DOTS_WARNING}[{' '.join(texts)}]")

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the rules of a new Job."""
        return validate_generated_selector(obj) + validate_job_spec(obj)

    def validate_create(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the rules of a new Job. The pod name of the highest index must be valid too."""
        errors = super().validate_create(obj, ctx)
        spec = obj["spec"]
        if obj["metadata"].get("labels") == (spec["template"].get("metadata") or {}).get("labels"):
            # The real server copies the labels only after it has stored the Job.
            errors = [e for e in errors if e.field != "metadata.labels"]
        if spec.get("completionMode") == "Indexed" and (spec.get("completions") or 0) > 0:
            name = f"{obj['metadata']['name']}-{spec['completions'] - 1}"
            if names.dns_label(name):
                text = f"will not able to create pod with invalid DNS label: {name}"
                errors.append(wrong("metadata.name", obj["metadata"]["name"], text))
        return errors

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check what an update of the main path may change."""
        errors = validate_generated_selector(new)
        content = validate_job_spec(new)
        return errors + content + content + validate_immutable(new["spec"], old["spec"])

    def validate_status(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the consistency of a status."""
        return validate_job_status(new, old)

    def default_propagation(self, obj: Obj) -> str:
        """Return "Orphan": batch/v1 keeps the old behaviour of orphaning pods."""
        return "Orphan"


def generate_selector(obj: Obj) -> None:
    """Add labels with the Job's uid and name, in both spellings, and the selector on the uid."""
    spec, metadata = obj["spec"], obj["metadata"]
    if spec.get("manualSelector"):
        return
    template_meta = spec["template"].setdefault("metadata", {})
    generated = {
        UID_LABEL: metadata["uid"],
        NAME_LABEL: metadata["name"],
        OLD_UID_LABEL: metadata["uid"],
        OLD_NAME_LABEL: metadata["name"],
    }
    before = template_meta.get("labels") or {}
    own = metadata.get("labels") or {}
    template_meta["labels"] = {**before, **generated}
    if own == before or not own:  # In the real server's defaulting the two are one map.
        metadata["labels"] = dict(template_meta["labels"])
    selector = spec.setdefault("selector", {})
    selector["matchLabels"] = {
        **(selector.get("matchLabels") or {}),
        UID_LABEL: metadata["uid"],
    }


def validate_generated_selector(obj: Obj) -> list[FieldError]:
    """Check that the generated labels are present and the selector is the generated one."""
    spec = obj["spec"]
    if spec.get("manualSelector") or spec.get("selector") is None:
        return []
    labels = (spec["template"].get("metadata") or {}).get("labels") or {}
    errors: list[FieldError] = []
    path = "spec.template.metadata.labels"
    for key, expected in (
        (UID_LABEL, obj["metadata"].get("uid")),
        (NAME_LABEL, obj["metadata"].get("name")),
        (OLD_UID_LABEL, obj["metadata"].get("uid")),
        (OLD_NAME_LABEL, obj["metadata"].get("name")),
    ):
        if key not in labels:
            errors.append(required(f"{path}[{key}]", f"must be '{expected}'"))
        elif labels[key] != expected:
            errors.append(wrong(f"{path}[{key}]", sorted_map(labels), f"must be '{expected}'"))
    expected_labels = {UID_LABEL: obj["metadata"].get("uid", "")}
    if not match_label_selector(spec["selector"], expected_labels):
        errors.append(
            wrong(
                "spec.selector", sorted_selector(spec["selector"]), "`selector` not auto-generated"
            )
        )
    return errors


def validate_job_spec(obj: Obj) -> list[FieldError]:
    """Check all content rules of a Job."""
    spec = obj["spec"]
    errors: list[FieldError] = []
    for key in (
        "parallelism",
        "completions",
        "activeDeadlineSeconds",
        "backoffLimit",
        "ttlSecondsAfterFinished",
        "backoffLimitPerIndex",
        "maxFailedIndexes",
    ):
        errors += not_negative(f"spec.{key}", spec.get(key))
    errors += _validate_mode(spec)
    errors += _validate_policies(spec)
    errors += validate_template(spec["template"], _TEMPLATE)
    errors += _validate_restart_policy(spec["template"]["spec"])
    selector = spec.get("selector")
    labels = (spec["template"].get("metadata") or {}).get("labels")
    if selector is None:
        errors.append(required("spec.selector"))
    if selector is None or not match_label_selector(selector, labels or {}):
        text = "`selector` does not match template `labels`"
        errors.append(wrong(_LABELS_PATH, sorted_map(labels), text))
    return errors


def _validate_mode(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    managed_by = spec.get("managedBy")
    if managed_by is not None:
        errors += all_wrong("spec.managedBy", managed_by, names.domain_prefixed_path(managed_by))
    mode = spec.get("completionMode")
    if mode not in ("NonIndexed", "Indexed"):
        errors.append(unsupported("spec.completionMode", mode, ("NonIndexed", "Indexed")))
    if mode == "Indexed":
        if spec.get("completions") is None:
            errors.append(required("spec.completions", "when completion mode is Indexed"))
        if (spec.get("parallelism") or 0) > _INDEXED_PARALLELISM_MAX:
            text = (
                f"must be less than or equal to {_INDEXED_PARALLELISM_MAX} when completion mode "
                "is Indexed"
            )
            errors.append(wrong("spec.parallelism", spec["parallelism"], text))
        if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
            text = "when maxFailedIndexes is specified"
            errors.append(required("spec.backoffLimitPerIndex", text))
    elif spec.get("backoffLimitPerIndex") is not None:
        errors.append(
            wrong(
                "spec.backoffLimitPerIndex",
                spec["backoffLimitPerIndex"],
                "requires indexed completion mode",
            )
        )
    return errors


def _validate_policies(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    policy = spec.get("podReplacementPolicy")
    allowed = ("Failed",) if "podFailurePolicy" in spec else ("Failed", "TerminatingOrFailed")
    if policy not in allowed:
        errors.append(unsupported("spec.podReplacementPolicy", policy, allowed))
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or ()
    actions = ("Count", "FailIndex", "FailJob", "Ignore")
    for index, rule in enumerate(rules):
        at = f"spec.podFailurePolicy.rules[{index}]"
        if rule.get("action") not in actions:
            errors.append(unsupported(f"{at}.action", rule.get("action", ""), actions))
        has_codes, has_conditions = "onExitCodes" in rule, bool(rule.get("onPodConditions"))
        if has_codes == has_conditions:
            text = (
                "specifying both OnExitCodes and OnPodConditions is not supported"
                if has_codes
                else "specifying one of OnExitCodes and OnPodConditions is required"
            )
            errors.append(wrong(at, OMIT, text))
    if "successPolicy" in spec and spec.get("completionMode") != "Indexed":
        shown = Raw(orjson.dumps({"Rules": spec["successPolicy"].get("rules")}).decode())
        text = "requires indexed completion mode"
        errors.append(wrong("spec.successPolicy", shown, text))
    return errors


def _validate_restart_policy(pod_spec: Obj) -> list[FieldError]:
    policy = pod_spec.get("restartPolicy", "")
    path = f"{_TEMPLATE}.spec.restartPolicy"
    if policy in ("", "Always"):
        return [required(path, 'valid values: "OnFailure", "Never"')]
    if policy not in ("OnFailure", "Never"):
        return [unsupported(path, policy, ("OnFailure", "Never"))]
    return []


def validate_immutable(new: Obj, old: Obj) -> list[FieldError]:
    """Check the fields that a Job may not change, given whether it is suspended now."""
    errors = _validate_completions(new, old)
    if new.get("selector") != old.get("selector"):
        errors.append(immutable("spec.selector", sorted_selector(new.get("selector"))))
    errors += _validate_template_change(new, old)
    for key in (
        "completionMode",
        "podFailurePolicy",
        "backoffLimitPerIndex",
        "managedBy",
        "successPolicy",
    ):
        if new.get(key) != old.get(key):
            errors.append(immutable(f"spec.{key}", new.get(key)))
    return errors


def _validate_completions(new: Obj, old: Obj) -> list[FieldError]:
    before, after = old.get("completions"), new.get("completions")
    if before == after:
        return []
    if old.get("completionMode") != "Indexed":
        return [immutable("spec.completions", after)]
    if after is None:
        return []
    if after != new.get("parallelism"):
        text = "can only be modified in tandem with spec.parallelism"
        return [wrong("spec.completions", after, text)]
    return []


def _validate_template_change(new: Obj, old: Obj) -> list[FieldError]:
    """Refuse changes of a template.

    Of a suspended Job the scheduling directives may change. Of a running Job nothing may change.
    """
    template, before = new["template"], old["template"]
    if template == before:
        return []
    if not old.get("suspend"):
        return [immutable(_TEMPLATE, template)]
    spec, old_spec = copy.deepcopy(template["spec"]), before["spec"]
    for key in _SUSPENDED_KEYS:
        _restore(spec, old_spec, key)
    _restore_node_affinity(spec, old_spec)
    for key in ("containers", "initContainers"):
        for container, kept in zip(spec.get(key) or (), old_spec.get(key) or (), strict=False):
            _restore(container, kept, "resources")
    return [] if spec == old_spec else [immutable(f"{_TEMPLATE}.spec", template["spec"])]


def _restore(target: Obj, source: Obj, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _restore_node_affinity(spec: Obj, old_spec: Obj) -> None:
    affinity = dict(spec.get("affinity") or {})
    kept = (old_spec.get("affinity") or {}).get("nodeAffinity")
    affinity.pop("nodeAffinity", None)
    if kept is not None:
        affinity["nodeAffinity"] = kept
    if affinity or "affinity" in old_spec:
        spec["affinity"] = affinity
    else:
        spec.pop("affinity", None)
