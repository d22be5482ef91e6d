"""Resources of a real API server that are not served here. They get a 501, not a 404.

``request.resolve`` calls it before it would answer 404.
"""

from __future__ import annotations

_RESOURCES = {
    "": "bindings componentstatuses endpoints replicationcontrollers  resourcequotas",
    "admissionregistration.k8s.io": "mutatingadmissionpolicies mutatingadmissionpolicybindings",
    "apiregistration.k8s.io": "apiservices",
    "autoscaling": "horizontalpodautoscalers",
    "batch": "cronjobs",
    "certificates.k8s.io": "certificatesigningrequests clustertrustbundles",
    "discovery.k8s.io": "endpointslices",
    "flowcontrol.apiserver.k8s.io": "flowschemas prioritylevelconfigurations",
    "metrics.k8s.io": "nodes pods",
    "networking.k8s.io": "ingressclasses ingresses ipaddresses networkpolicies servicecidrs",
    "resource.k8s.io": "deviceclasses resourceclaims resourceclaimtemplates resourceslices",
    "storage.k8s.io": "csidrivers csistoragecapacities volumeattachments volumeattributesclasses",
}
_SUBRESOURCES = {
    ("", "pods"): "attach ephemeralcontainers exec portforward proxy resize",
    ("", "nodes"): "proxy",
    ("", "services"): "proxy",
}


def why_unserved(group: str, plural: str, subresource: str = "") -> str:
    """Return what the 501 names, or "" if a real server would not know it either."""
    resource = f"{plural}.{group}" if group else plural
    if plural in _RESOURCES.get(group, "").split():
        return resource
    known = _SUBRESOURCES.get((group, plural), "").split()
    first = subresource.partition("/")[0]
    return f"{resource}/{first}" if first in known else ""
