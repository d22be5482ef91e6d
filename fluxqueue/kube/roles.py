"""The roles that let users see and steer FluxJobs, without a chart.

``fluxqueue up`` calls it. The text is the chart's own (``chart/files/roles.yaml``), so both give
the same rights. A test compares them.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any

import yaml

from fluxqueue.errors import InvalidSettings

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
    text = _read().replace("@NAME@", name)
    common = marks or {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "fluxqueue"}
    for role in ("view", "edit", "admin"):
        labels = {**common, f"{AGGREGATE}{role}": "true"}
        text = text.replace(f"@LABELS_{role.upper()}@", json.dumps(labels))
    return [one for one in yaml.safe_load_all(text) if one]


def _read() -> str:
    packaged = importlib.resources.files("fluxqueue") / "files" / FILE
    source = Path(__file__).resolve().parents[2] / "chart" / "files" / FILE
    for place in (packaged, source):
        if place.is_file():
            return place.read_text(encoding="utf-8")
    raise InvalidSettings(
        f"{FILE} is missing",
        where=str(packaged),
        hint="install fluxqueue from its wheel or its source tree",
    )
