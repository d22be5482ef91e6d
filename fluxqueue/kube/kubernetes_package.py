"""The package ``kubernetes`` without its optional validator, which nothing here uses.

``kubernetes.dynamic`` imports ``kubernetes_validate`` if it is installed, as for the tests of the
chart. That also imports jsonschema, and compiles a grammar of IRIs at each import. It costs every
process that reads a kubeconfig two seconds of processor time.

``config`` calls it. So does the controller before it imports kopf, which imports the package too.
"""

from __future__ import annotations

import sys
from typing import Any

_VALIDATOR = "kubernetes_validate"


def import_without_validator() -> None:
    """Import ``kubernetes``. The validator can still be imported afterwards."""
    # A name that is None in sys.modules cannot be imported (import system documentation).
    modules: dict[str, Any] = sys.modules
    is_hidden = modules.setdefault(_VALIDATOR, None) is None
    try:
        import kubernetes  # noqa: F401  for its effect
    finally:
        if is_hidden:
            del modules[_VALIDATOR]
