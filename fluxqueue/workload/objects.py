"""The type of a Kubernetes object: its JSON, as the API server sends it.

Every layer reads objects and does not change them. Code that makes or changes an object works on a
copy, a plain ``dict``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = Mapping[str, Any]
