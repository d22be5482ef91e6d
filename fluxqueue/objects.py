"""What a Kubernetes object is here: its JSON, as the API server sends it.

For every layer: read, not changed; who makes or changes one works on a copy, a plain ``dict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]
