"""Field selectors of built-in kinds, in addition to metadata.name and metadata.namespace.

Each function returns all its fields for any object, so that unknown fields can be detected.
"""

from __future__ import annotations

from localcluster.obj import Obj


def _metadata(obj: Obj) -> dict[str, str]:
    meta = obj.get("metadata") or {}
    fields = {"metadata.name": str(meta.get("name", ""))}
    if "namespace" in meta:
        fields["metadata.namespace"] = str(meta["namespace"])
    return fields


def pods(obj: Obj) -> dict[str, str]:
    """Return the fields of Pods, which the scheduler and node agents select by."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    ips = status.get("podIPs") or []
    return {
        **_metadata(obj),
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
        "status.phase": status.get("phase", ""),
        "status.podIP": ips[0].get("ip", "") if ips else status.get("podIP", ""),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


def jobs(obj: Obj) -> dict[str, str]:
    """Return the fields of Jobs, among them an unusual one of old versions."""
    return {
        **_metadata(obj),
        "status.successful": str((obj.get("status") or {}).get("succeeded", 0)),
    }


def nodes(obj: Obj) -> dict[str, str]:
    """Return the fields of Nodes."""
    unschedulable = bool((obj.get("spec") or {}).get("unschedulable"))
    return {**_metadata(obj), "spec.unschedulable": "true" if unschedulable else "false"}


def namespaces(obj: Obj) -> dict[str, str]:
    """Return the fields of Namespaces."""
    return {**_metadata(obj), "status.phase": (obj.get("status") or {}).get("phase", "")}


def services(obj: Obj) -> dict[str, str]:
    """Return the fields of Services."""
    spec = obj.get("spec") or {}
    return {
        **_metadata(obj),
        "spec.clusterIP": spec.get("clusterIP", ""),
        "spec.type": spec.get("type", ""),
    }


def secrets(obj: Obj) -> dict[str, str]:
    """Return the fields of Secrets."""
    return {**_metadata(obj), "type": obj.get("type", "")}


def events(obj: Obj) -> dict[str, str]:
    """Return the fields of Events, in either API."""
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    component = (
        source.get("component")
        or obj.get("reportingComponent")
        or (obj.get("reportingController") or "")
    )
    fields = _metadata(obj)
    for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"):
        fields[f"involvedObject.{key}"] = str(involved.get(key, ""))
        fields[f"regarding.{key}"] = fields[f"involvedObject.{key}"]
    fields["reason"] = obj.get("reason", "")
    fields["reportingComponent"] = obj.get("reportingComponent", "")
    fields["source"] = component
    fields["type"] = obj.get("type", "")
    return fields
