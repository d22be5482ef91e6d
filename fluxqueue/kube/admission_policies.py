"""The admission policies, without a chart: those that guard queued work, and two for its pods.

Called by the command line (``fluxqueue up`` and ``install``). The texts are the chart's own
(``chart/files``), so both install the same policies. A test compares those of queued work.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from fluxqueue.kube.webhook_configuration import NAME, selected_namespaces, tenants
from fluxqueue.process.cluster_accounts import CLUSTER_CONTROLLERS
from fluxqueue.process.packaged import read_packaged
from fluxqueue.workload import labels
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds
from fluxqueue.workload.submitter import Submitters

FILE, RELEASED_PODS = "policies.yaml", "released-pods.yaml"
UNGROUPED_PODS = "ungrouped-pods.yaml"
_JOBS = {
    "apiGroups": ["batch"],
    "apiVersions": ["v1"],
    "operations": ["UPDATE"],
    "resources": ["jobs"],
    "scope": "Namespaced",
}
_MARKS = {"app.kubernetes.io/name": "fluxqueue", "app.kubernetes.io/part-of": "fluxqueue"}


def build_policies(
    own_users: Sequence[str],
    *,
    name: str = NAME,
    own_namespace: str = labels.OWN_NAMESPACE,
    is_opt_in: bool = False,
    exempt_groups: Sequence[str] = (),
    submitters: Submitters | None = None,
    owner_kinds: OwnerKinds | None = None,
    marks: dict[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Build the policies and their bindings, in the order to create them in.

    Parameters
    ----------
    own_users : accounts of our components, which release queued work.
    is_opt_in : as for ``WebhookConfiguration``.
    submitters : accounts that submit on behalf of a user (default: the cluster's controllers).
    owner_kinds : kinds that make pods beside Jobs.
    marks : labels of the objects.

    Raises
    ------
    InvalidSettings
        The installation lacks the file.
    """
    known = submitters or Submitters(controllers=frozenset(CLUSTER_CONTROLLERS))
    owners = [_owner_rule(one) for one in owner_kinds or OwnerKinds() if one.suspend]
    words: dict[str, Any] = {
        "LABELS": marks or _MARKS,
        "OWN_USERS": list(own_users),
        "EXEMPT_GROUPS": list(exempt_groups),
        "CONTROLLERS": sorted(known.controllers),
        "ACCOUNTS": sorted(known.accounts),
        "SUBMITTER": known.annotation,
        "OWNERS": owners,
        "LIMITED": [_JOBS, *({**one, "operations": ["UPDATE"]} for one in owners)],
        "NAMESPACES": selected_namespaces(own_namespace, is_opt_in=is_opt_in),
        "TENANTS": tenants(own_namespace),
    }
    return _read(FILE, name, words)


def build_released_pods_policy(*, name: str = NAME) -> list[dict[str, Any]]:
    """Build the policy that has released pods stored without managed fields, and its binding.

    Raises
    ------
    InvalidSettings
        The installation lacks the file.
    """
    return _read(RELEASED_PODS, name, {"LABELS": _MARKS})


def build_ungrouped_pods_policy(*, name: str = NAME) -> list[dict[str, Any]]:
    """Build the policy that takes pods out of the PodGroups of their Jobs, and its binding.

    Raises
    ------
    InvalidSettings
        The installation lacks the file.
    """
    return _read(UNGROUPED_PODS, name, {"LABELS": _MARKS})


def _read(file: str, name: str, words: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = read_packaged(file).replace("@NAME@", name)
    for word, value in words.items():
        text = text.replace(f"@{word}@", json.dumps(value, separators=(",", ":")))
    return [one for one in yaml.safe_load_all(text) if one]


def _owner_rule(one: OwnerKind) -> dict[str, Any]:
    return {
        "apiGroups": [one.group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [one.resource],
        "scope": "Namespaced",
    }
