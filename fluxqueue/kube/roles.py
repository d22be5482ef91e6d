"""The roles that let users see and steer FluxJobs, without a chart.

``fluxqueue up`` calls it. The text is the chart's own (``chart/files/roles.yaml``), so both give
the same rights. A test compares them.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from fluxqueue.process.packaged import read_packaged

FILE = "roles.yaml"
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


def build_roles(
    *, name: str = "fluxqueue", marks: dict[str, str] | None = None
) -> list[dict[str, Any]]:
    """Build the ClusterRoles ``<name>-viewer``, ``-user`` and ``-operator``.

    Parameters
    ----------
    marks : labels of the objects.

    Raises
    ------
    InvalidSettings
        The installation lacks the file.
    """
    text = read_packaged(FILE).replace("@NAME@", name)
    common = marks or {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "fluxqueue"}
    for role in ("view", "edit", "admin"):
        labels = {**common, f"{AGGREGATE}{role}": "true"}
        text = text.replace(f"@LABELS_{role.upper()}@", json.dumps(labels))
    return [one for one in yaml.safe_load_all(text) if one]
