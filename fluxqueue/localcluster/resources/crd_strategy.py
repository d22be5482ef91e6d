"""Strategy of CustomResourceDefinitions."""

from __future__ import annotations

from fluxqueue.localcluster.resources.strategy import BaseStrategy


class DefinitionStrategy(BaseStrategy):
    """apiextensions.k8s.io/v1 CustomResourceDefinition."""

    type_name = "CustomResourceDefinition"
    is_namespaced = False
    has_status = True
    has_generation = True
