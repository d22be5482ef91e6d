"""Strategy of MutatingWebhookConfigurations."""

from __future__ import annotations

from fluxqueue.localcluster.resources.strategy import BaseStrategy


class WebhookConfigStrategy(BaseStrategy):
    """admissionregistration.k8s.io/v1 MutatingWebhookConfiguration."""

    type_name = "MutatingWebhookConfiguration"
    is_namespaced = False
    has_generation = True
