"""Strategies of apps/v1: Deployment, ReplicaSet, StatefulSet, DaemonSet, ControllerRevision."""

from __future__ import annotations

import copy
from typing import Any

import orjson

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
from localcluster.types.label_match import match_label_selector
from localcluster.types.refusals import (
    FieldError,
    Raw,
    not_allowed,
    required,
    sorted_map,
    sorted_selector,
    wrong,
)

_LABELS_PATH = "spec.template.metadata.labels"


class WorkloadStrategy(BaseStrategy):
    """What the four kinds share: replicas, selector, template."""

    has_status = True
    has_generation = True
    has_replicas = True

    def default(self, obj: Obj) -> None:
        """Set replicas and the template's defaults."""
        spec = obj["spec"]
        if self.has_replicas:
            spec.setdefault("replicas", 1)
        default_template(spec.setdefault("template", {}))
        self.default_more(spec)

    def default_more(self, spec: Obj) -> None:
        """Set the defaults of the kind itself."""

    def pods_of(self, spec: Obj) -> Obj:
        """Return the pod template from which pods are made."""
        template: Obj = spec.get("template") or {}
        return template

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check selector, template, and that restartPolicy is Always."""
        spec = obj["spec"]
        errors = not_negative("spec.replicas", spec.get("replicas"))
        errors += not_negative("spec.minReadySeconds", spec.get("minReadySeconds"))
        errors += not_negative("spec.revisionHistoryLimit", spec.get("revisionHistoryLimit"))
        selector, template = spec.get("selector"), spec.get("template") or {}
        labels = (template.get("metadata") or {}).get("labels")
        if selector is None:
            errors.append(required("spec.selector"))
        elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
            known_as = "deployment" if self.type_name == "ReplicaSet" else self.type_name.lower()
            text = f"empty selector is invalid for {known_as}"
            errors.append(wrong("spec.selector", sorted_selector(selector), text))
        if selector is None or not match_label_selector(selector, labels or {}):
            text = "`selector` does not match template `labels`"
            errors.append(wrong(_LABELS_PATH, sorted_map(labels), text))
        errors += validate_template(self.pods_of(spec), "spec.template")
        policy = (template.get("spec") or {}).get("restartPolicy")
        if policy != "Always" and policy in ("OnFailure", "Never"):
            path = "spec.template.spec.restartPolicy"
            errors.append(unsupported(path, policy, ("Always",)))
        return errors

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse a change of the selector."""
        errors = self.validate(new, ctx)
        if new["spec"].get("selector") != old["spec"].get("selector"):
            errors.append(immutable("spec.selector", sorted_selector(new["spec"].get("selector"))))
        return errors


_DEPLOYMENT_STRATEGIES = ("Recreate", "RollingUpdate")
_ROLLING = ("maxUnavailable", "maxSurge")


class DeploymentStrategy(WorkloadStrategy):
    """apps/v1 Deployment."""

    type_name = "Deployment"

    def default_more(self, spec: Obj) -> None:
        """Set a rolling update by quarters."""
        strategy = spec.setdefault("strategy", {})
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", "25%")
            rolling.setdefault("maxSurge", "25%")
        spec.setdefault("revisionHistoryLimit", 10)
        spec.setdefault("progressDeadlineSeconds", 600)

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check also that the strategy can make progress, and within its deadline."""
        spec, errors = obj["spec"], super().validate(obj, ctx)
        strategy = spec.get("strategy") or {}
        rolling = strategy.get("rollingUpdate")
        path = "spec.strategy"
        if strategy.get("type") not in _DEPLOYMENT_STRATEGIES:
            shown = {"Type": strategy.get("type", ""), "RollingUpdate": rolling}
            value = Raw(orjson.dumps(shown).decode())
            errors.append(unsupported(path, value, _DEPLOYMENT_STRATEGIES))
        elif strategy["type"] == "Recreate" and rolling is not None:
            text = "may not be specified when strategy `type` is 'Recreate'"
            errors.append(not_allowed(f"{path}.rollingUpdate", text))
        elif rolling and all(rolling.get(key) in (0, "0%") for key in _ROLLING):
            where = f"{path}.rollingUpdate.maxUnavailable"
            text = "may not be 0 when `maxSurge` is 0"
            errors.append(wrong(where, rolling["maxUnavailable"], text))
        deadline = spec.get("progressDeadlineSeconds")
        if deadline is not None and deadline <= (spec.get("minReadySeconds") or 0):
            text = "must be greater than minReadySeconds"
            errors.append(wrong("spec.progressDeadlineSeconds", deadline, text))
        return errors

    def generation_relevant(self, obj: Obj) -> Any:
        """Return spec and annotations (``deploymentStrategy.PrepareForUpdate``)."""
        return obj.get("spec"), obj["metadata"].get("annotations") or {}


class ReplicaSetStrategy(WorkloadStrategy):
    """apps/v1 ReplicaSet."""

    type_name = "ReplicaSet"


class StatefulSetStrategy(WorkloadStrategy):
    """apps/v1 StatefulSet."""

    type_name = "StatefulSet"
    _MUTABLE = (
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    )

    def pods_of(self, spec: Obj) -> Obj:
        """Return the template with a volume for each claim.

        Containers may mount a claim by its name.
        """
        template = super().pods_of(spec)
        claims = [one["metadata"]["name"] for one in spec.get("volumeClaimTemplates") or ()]
        pod_spec = template.get("spec") or {}
        volumes = [
            *(one for one in pod_spec.get("volumes") or () if one.get("name") not in claims),
            *({"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims),
        ]
        return {**template, "spec": {**pod_spec, "volumes": volumes}} if claims else template

    def default_more(self, spec: Obj) -> None:
        """Set ordered start, rolling update, retained claims."""
        spec.setdefault("podManagementPolicy", "OrderedReady")
        strategy = spec.setdefault("updateStrategy", {})
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
        retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
        retention.setdefault("whenDeleted", "Retain")
        retention.setdefault("whenScaled", "Retain")
        spec.setdefault("revisionHistoryLimit", 10)

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse changes except of the listed fields."""
        errors = self.validate(new, ctx)
        copied = copy.copy(new["spec"])
        for key in self._MUTABLE:
            if key in old["spec"]:
                copied[key] = old["spec"][key]
            else:
                copied.pop(key, None)
        if copied != old["spec"]:
            text = (
                "updates to statefulset spec for fields other than 'replicas', 'ordinals', "
                "'template', 'updateStrategy', 'revisionHistoryLimit', "
                "'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
            )
            errors.append(not_allowed("spec", text))
        return errors


class DaemonSetStrategy(WorkloadStrategy):
    """apps/v1 DaemonSet."""

    type_name = "DaemonSet"
    has_replicas = False

    def default_more(self, spec: Obj) -> None:
        """Set a rolling update of one pod at a time."""
        strategy = spec.setdefault("updateStrategy", {})
        strategy.setdefault("type", "RollingUpdate")
        if strategy["type"] == "RollingUpdate":
            rolling = strategy.setdefault("rollingUpdate", {})
            rolling.setdefault("maxUnavailable", 1)
            rolling.setdefault("maxSurge", 0)
        spec.setdefault("revisionHistoryLimit", 10)


class PodTemplateStrategy(BaseStrategy):
    """core/v1 PodTemplate: a template that other objects refer to."""

    type_name = "PodTemplate"
    has_generation = True

    def default(self, obj: Obj) -> None:
        """Set the defaults of the template."""
        default_template(obj.setdefault("template", {}))

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check the template."""
        return validate_template(obj["template"], "template")
