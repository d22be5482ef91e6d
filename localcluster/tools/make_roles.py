"""Writes ``kinds/default_roles.json``: the roles and bindings that a new cluster has.

    kubectl get clusterroles,clusterrolebindings,roles,rolebindings -A -o json > all.json
    python tools/make_roles.py all.json

from a cluster of the supported Kubernetes that nobody has used. Left out are the roles of
controllers that are not here (``system:controller:*`` and what their leaders lock), what a vendor
added, and the rules of aggregated roles, which follow from the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "src/localcluster/kinds/default_roles.json"
LEFT_OUT = ("system:controller:", "system::leader-locking-", "system:openshift:")
KEPT_OF_METADATA = ("name", "namespace", "labels", "annotations")


def _reduced(one: dict[str, Any]) -> dict[str, Any]:
    meta = {key: one["metadata"][key] for key in KEPT_OF_METADATA if key in one["metadata"]}
    made = {"apiVersion": one["apiVersion"], "kind": one["kind"], "metadata": meta}
    for key in ("aggregationRule", "rules", "roleRef", "subjects"):
        if key in one and not (key == "rules" and "aggregationRule" in one):
            made[key] = one[key]
    return made


def main(source: Path) -> None:
    """One object per line, in the order of kinds and names."""
    items = json.loads(source.read_text(encoding="utf-8"))["items"]
    kept = [one for one in items if not one["metadata"]["name"].startswith(LEFT_OUT)]
    kept.sort(key=lambda one: (one["kind"], one["metadata"]["name"]))
    lines = [json.dumps(_reduced(one), separators=(",", ":")) for one in kept]
    TARGET.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
