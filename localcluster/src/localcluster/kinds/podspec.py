"""Defaults of pod specs and templates (``pkg/apis/core/v1/defaults.go``).

The Pod strategy and all strategies with a pod template call it. Pure.
"""

from __future__ import annotations

from localcluster.obj import Obj
from localcluster.types.pod_requests import container_requests, is_pod_level

_MODE_VOLUMES = ("secret", "configMap", "downwardAPI", "projected")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")


def default_template(template: Obj) -> None:
    """Set the defaults of ``spec.template``."""
    default_pod_spec(template.setdefault("spec", {}))


def default_pod_spec(spec: Obj) -> None:
    """Set the defaults that pods and templates share."""
    for key in ("initContainers", "containers", "ephemeralContainers"):
        for container in spec.get(key) or ():
            _default_container(container, is_host_network=bool(spec.get("hostNetwork")))
    for volume in spec.get("volumes") or ():
        _default_volume(volume)
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    # Pods of very old versions, which end immediately.
    if spec["terminationGracePeriodSeconds"] < 0:
        spec["terminationGracePeriodSeconds"] = 1
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    mirror_service_account(spec)


def mirror_service_account(spec: Obj) -> None:
    """Copy ``serviceAccountName`` to ``serviceAccount``, its old name, or the reverse."""
    name = spec.get("serviceAccountName") or spec.get("serviceAccount")
    if name:
        spec["serviceAccountName"] = spec["serviceAccount"] = name


def _default_container(container: Obj, *, is_host_network: bool) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    if "imagePullPolicy" not in container:
        container["imagePullPolicy"] = _pull_policy(container.get("image", ""))
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if is_host_network:
            port.setdefault("hostPort", port.get("containerPort", 0))
    for env in container.get("env") or ():
        source = env.get("valueFrom")
        if source and "fieldRef" in source:
            source["fieldRef"].setdefault("apiVersion", "v1")
        if source and "resourceFieldRef" in source:
            source["resourceFieldRef"].setdefault("divisor", "0")
    for key in _PROBES:
        if key in container:
            _default_probe(container[key])
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            _default_http_get(hook["httpGet"])


def _pull_policy(image: str) -> str:
    if "@" in image:
        return "IfNotPresent"
    tail = image.rpartition("/")[2]
    tag = tail.partition(":")[2] or "latest"
    return "Always" if tag == "latest" else "IfNotPresent"


def _default_probe(probe: Obj) -> None:
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)
    if "httpGet" in probe:
        _default_http_get(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http_get(action: Obj) -> None:
    action.setdefault("path", "/")
    action.setdefault("scheme", "HTTP")


def _default_volume(volume: Obj) -> None:
    if not any(key != "name" for key in volume):
        volume["emptyDir"] = {}
    for key in _MODE_VOLUMES:
        if key in volume:
            volume[key].setdefault("defaultMode", 420)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")
    for item in (volume.get("downwardAPI") or {}).get("items") or ():
        _default_field_ref(item)
    for source in (volume.get("projected") or {}).get("sources") or ():
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
        for item in (source.get("downwardAPI") or {}).get("items") or ():
            _default_field_ref(item)


def _default_field_ref(item: Obj) -> None:
    if "fieldRef" in item:
        item["fieldRef"].setdefault("apiVersion", "v1")


def default_pod_resources(spec: Obj) -> None:
    """Set requests from limits. This applies to Pods, not to templates."""
    for key in ("containers", "initContainers"):
        for container in spec.get(key) or ():
            resources = container.get("resources") or {}
            limits = resources.get("limits")
            if not limits:
                continue
            requests = resources.setdefault("requests", {})
            for name, value in limits.items():
                requests.setdefault(name, value)
    _default_pod_level(spec.get("resources") or {}, spec)


def _default_pod_level(resources: Obj, spec: Obj) -> None:
    """Set requests of the whole pod where it has limits: what containers request, or the limit."""
    lacking = [
        name
        for name in resources.get("limits") or {}
        if is_pod_level(name) and name not in (resources.get("requests") or {})
    ]
    if not lacking:
        return
    asked = container_requests(spec)
    requests = resources.setdefault("requests", {})
    for name in lacking:
        amount = asked.get(name)
        text = resources["limits"][name] if amount is None else _quantity(name, amount)
        requests[name] = text


def _quantity(name: str, amount: int) -> str:
    if name != "cpu":
        return str(amount)
    return f"{amount}m" if amount % 1000 else str(amount // 1000)


def qos_class(spec: Obj) -> str:
    """Return BestEffort, Burstable or Guaranteed (``qos.ComputePodQOS``)."""
    has_any = False
    is_guaranteed = True
    for container in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]:
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        for name in ("cpu", "memory"):
            limit, request = limits.get(name, "0"), requests.get(name, "0")
            if limit != "0" or request != "0":
                has_any = True
            if limit == "0" or limit != request:
                is_guaranteed = False
    if not has_any:
        return "BestEffort"
    return "Guaranteed" if is_guaranteed else "Burstable"
