"""The ValidatingAdmissionPolicies that guard queued work, without a chart.

Called by the command line (``fluxqueue up`` and ``install``). The text is the chart's own
(``chart/files/policies.yaml``), so both install the same policies. A test compares them.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from fluxqueue.errors import InvalidSettings
from fluxqueue.workload import labels
from webhook.configuration import NAME, selected_namespaces, tenants

FILE = "policies.yaml"
JOB_CONTROLLERS = (
    "system:serviceaccount:kube-system:job-controller",
    "system:kube-controller-manager",
)
"""Accounts of the cluster's own Job controller. It makes gated pods from guarded templates."""


def build_policies(
    own_users: Sequence[str],
    *,
    name: str = NAME,
    own_namespace: str = labels.OWN_NAMESPACE,
    is_opt_in: bool = False,
    exempt_groups: Sequence[str] = (),
    job_controllers: Sequence[str] = JOB_CONTROLLERS,
    marks: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Build the policies and their bindings, in the order in which they are to be created.

    Parameters
    ----------
    own_users : accounts of our parts, which let queued work go.
    is_opt_in : as of ``configuration.build_configuration``.
    marks : labels of the objects.

    Raises
    ------
    InvalidSettings
        The installation lacks the file.
    """
    words: dict[str, Any] = {
        "LABELS": marks
        or {"app.kubernetes.io/name": "fluxqueue", "app.kubernetes.io/part-of": "fluxqueue"},
        "OWN_USERS": list(own_users),
        "EXEMPT_GROUPS": list(exempt_groups),
        "JOB_CONTROLLERS": list(job_controllers),
        "NAMESPACES": selected_namespaces(own_namespace, is_opt_in=is_opt_in),
        "TENANTS": tenants(own_namespace),
    }
    text = _read().replace("@NAME@", name)
    for word, value in words.items():
        text = text.replace(f"@{word}@", json.dumps(value, separators=(",", ":")))
    return [one for one in yaml.safe_load_all(text) if one]


def _read() -> str:
    packaged = importlib.resources.files("fluxqueue") / "files" / FILE
    source = Path(__file__).resolve().parents[1] / "chart" / "files" / FILE
    for place in (packaged, source):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise InvalidSettings(
        f"{FILE} is missing",
        where=str(packaged),
        hint="install fluxqueue from its wheel or its source tree",
    )
