"""Renders the chart to one manifest for ``kubectl apply --server-side -f``, without Helm.

    python chart/manifest.py                         (make manifest)
    python chart/manifest.py --values mine.yaml      (as many files as needed)

The manifest has the namespace, the definitions and everything that the chart installs. It has no
hooks and no tests, which only Helm runs, and no password or key: each rendering would make another
one. ``Secret/fluxqueue-postgres`` and ``Secret/fluxqueue-placement-key`` are created once by hand
(docs/admin/install.md). Not part of the packaged chart.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import helm_python
import yaml

CHART = Path(__file__).resolve().parent
RELEASE, NAMESPACE = "fluxqueue", "fluxqueue-system"
SECRET, KEY = "fluxqueue-postgres", "fluxqueue-placement-key"
FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "Secret", "ConfigMap")
"""Kinds that others need, in this order. All others follow in the order of the chart."""
_HOOK = re.compile(r"^ *[\"']?helm\.sh/hook[\"']?:", re.MULTILINE)
_DOCUMENTS = re.compile(r"^---[ \t]*$", re.MULTILINE)


def manifest(values: Mapping[str, Any] | None = None) -> str:
    """Return the manifest as text: the chart's own, with its comments.

    Parameter: ``values`` as of ``helm install``.

    Raises
    ------
    helm_python.HelmError
        The values do not fit the chart.
    """
    given = _merged(
        {"postgres": {"existingSecret": SECRET}, "placementKey": {"existingSecret": KEY}},
        values or {},
    )
    files = helm_python.Chart.load(CHART).render(given, name=RELEASE, namespace=NAMESPACE)
    found = [_NAMESPACE, *((CHART / "crds" / name).read_text() for name in _definitions())]
    for path, text in sorted(files.items()):
        if path.endswith(".yaml"):
            found += _DOCUMENTS.split(text)
    found = [one.replace("managed-by: Helm", "managed-by: kubectl") for one in found]
    kept = [one.strip("\n") for one in found if _is_object(one) and not _HOOK.search(one)]
    return "---\n" + "\n---\n".join(sorted(kept, key=_place)) + "\n"


_NAMESPACE = f"""
apiVersion: v1
kind: Namespace
metadata: {{name: {NAMESPACE}}}
"""


def _definitions() -> Iterable[str]:
    return sorted(path.name for path in (CHART / "crds").glob("*.yaml"))


def _is_object(text: str) -> bool:
    return bool(re.search(r"^kind: ", text, re.MULTILINE))


def _place(text: str) -> int:
    found = re.search(r"^kind: (\w+)", text, re.MULTILINE)
    assert found is not None, "_is_object"
    return FIRST.index(found[1]) if found[1] in FIRST else len(FIRST)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values as Helm does: maps key by key, everything else as a whole."""
    merged = dict(one)
    for key, value in other.items():
        before = merged.get(key)
        is_map = isinstance(value, Mapping) and isinstance(before, Mapping)
        merged[key] = _merged(before or {}, value) if is_map else value
    return merged


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the manifest. Return 1 if the values do not fit the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--values", "-f", action="append", default=[], metavar="FILE")
    asked = parser.parse_args(arguments)
    values: dict[str, Any] = {}
    try:
        for name in asked.values:
            values = _merged(values, yaml.safe_load(Path(name).read_text(encoding="utf-8")) or {})
        sys.stdout.write(manifest(values))
    except (OSError, yaml.YAMLError, helm_python.HelmError) as error:
        sys.stderr.write(f"manifest: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
