"""The package ``kubernetes`` without its optional validator, which nothing here uses.

``kubernetes.dynamic`` imports ``kubernetes_validate`` where that is installed, as it is for the
tests of the chart; with it come jsonschema and a grammar of IRIs that is compiled at each import:
two seconds of processor time for every process that reads a kubeconfig. Called by ``config``, and
by the controller before it imports kopf, which imports the package too.
"""

from __future__ import annotations

import sys
from typing import Any

_VALIDATOR = "kubernetes_validate"


def import_without_validator() -> None:
    """Import ``kubernetes``; where the validator has not been imported it can be afterwards."""
    # A name that is None in sys.modules cannot be imported (the import system's documentation).
    modules: dict[str, Any] = sys.modules
    is_hidden = modules.setdefault(_VALIDATOR, None) is None
    try:
        import kubernetes  # noqa: F401  for its effect
    finally:
        if is_hidden:
            del modules[_VALIDATOR]
