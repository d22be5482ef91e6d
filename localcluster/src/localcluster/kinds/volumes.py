"""Strategies of volumes: PersistentVolume, StorageClass, CSINode.

They are stored for schedulers and clients that read them. No controller binds or provisions here.
"""

from __future__ import annotations

from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types.refusals import FieldError, required


class PersistentVolumeStrategy(BaseStrategy):
    """core/v1 PersistentVolume."""

    type_name = "PersistentVolume"
    is_namespaced = False
    has_status = True

    def default(self, obj: Obj) -> None:
        """Set the volume mode and the reclaim policy."""
        obj["spec"].setdefault("volumeMode", "Filesystem")
        obj["spec"].setdefault("persistentVolumeReclaimPolicy", "Retain")

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Set phase Pending."""
        super().prepare_create(obj, ctx)
        obj["status"] = {"phase": "Pending"}

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Require access modes and a capacity."""
        spec = obj["spec"]
        return [
            required(f"spec.{name}") for name in ("accessModes", "capacity") if not spec.get(name)
        ]


class StorageClassStrategy(BaseStrategy):
    """storage.k8s.io/v1 StorageClass."""

    type_name = "StorageClass"
    is_namespaced = False

    def default(self, obj: Obj) -> None:
        """Set the reclaim policy and the binding mode."""
        obj.setdefault("reclaimPolicy", "Delete")
        obj.setdefault("volumeBindingMode", "Immediate")

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Require a provisioner."""
        return [] if obj.get("provisioner") else [required("provisioner")]


class CsiNodeStrategy(BaseStrategy):
    """storage.k8s.io/v1 CSINode."""

    type_name = "CSINode"
    is_namespaced = False
