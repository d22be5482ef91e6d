"""``Obj``: a Kubernetes object, or a part of one, as decoded JSON."""

from typing import Any

Obj = dict[str, Any]
