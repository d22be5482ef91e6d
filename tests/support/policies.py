"""The admission policies of the chart."""

from __future__ import annotations

from fluxqueue.kube.resources import ApiResource

_ADMISSION = "admissionregistration.k8s.io"
POLICIES = {
    kind: ApiResource(_ADMISSION, "v1", plural, kind, False)
    for kind, plural in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    )
}
