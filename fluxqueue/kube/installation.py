"""Install our objects in a cluster: namespace, definitions, webhook, policies, view.

``fluxqueue up`` calls it. In production a chart does the same. Every step may be repeated, and
corrects what is there.
"""

from __future__ import annotations

import asyncio
import importlib.resources
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fluxqueue.errors import Conflict, InvalidSettings, NotFound
from fluxqueue.kube.admission_policies import (
    build_released_pods_policy,
    build_ungrouped_pods_policy,
)
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import (
    ADMISSION_POLICIES,
    ADMISSION_POLICY_BINDINGS,
    CONFIGMAPS,
    CRDS,
    FLUX_NODE_POOLS,
    FLUX_RESERVATIONS,
    FLUXJOBS,
    FLUXQUEUES,
    MUTATING_POLICIES,
    MUTATING_POLICY_BINDINGS,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PLACEMENT_REVIEWS,
    SHARING_POLICIES,
    ApiResource,
)
from fluxqueue.workload.labels import SELF_MADE, VIEW

CRD_FILES = (
    "fluxjobs.yaml",
    "fluxnodepools.yaml",
    "fluxqueues.yaml",
    "fluxreservations.yaml",
    "placementreviews.yaml",
    "resourcesharingpolicies.yaml",
)
_NATIVE_GROUPS = ("scheduling.k8s.io", "PodGroup")
OUR_KINDS = (
    FLUXJOBS,
    FLUX_NODE_POOLS,
    FLUXQUEUES,
    FLUX_RESERVATIONS,
    PLACEMENT_REVIEWS,
    SHARING_POLICIES,
)
"""The kinds that our definitions define."""
VIEW_NAMESPACE, VIEW_NAME = "kube-public", "fluxqueue-view"
"""The ConfigMap with the address of the view server, in the namespace for such data."""
ESTABLISHED_TIMEOUT_S = 30.0
_POLL_S = 0.1


def read_crds() -> list[dict[str, Any]]:
    """Return our definitions, from the wheel or from the chart of a source checkout.

    Raises
    ------
    InvalidSettings
        Neither place has them: the installation is incomplete.
    """
    packaged = importlib.resources.files("fluxqueue") / "crds"
    source = Path(__file__).resolve().parents[2] / "chart" / "crds"
    for place in (packaged, source):
        files = [place / name for name in CRD_FILES]
        if all(file.is_file() for file in files):
            return [yaml.safe_load(file.read_text(encoding="utf-8")) for file in files]
    raise InvalidSettings(
        f"{' or '.join(CRD_FILES)} is missing",
        where=str(packaged),
        hint="install fluxqueue from its wheel or its source tree",
    )


async def install_definitions(client: KubeClient, namespace: str) -> None:
    """Create our namespace and our definitions, and wait until they are served.

    Raises
    ------
    ApiUnavailable, ApiError
        The API server cannot be reached or refuses.
    TimeoutError
        A definition was accepted but is not served.
    """
    await put(client, NAMESPACES, {"metadata": {"name": namespace}})
    await put_definitions(client)
    async with asyncio.timeout(ESTABLISHED_TIMEOUT_S):
        while True:
            try:
                for resource in OUR_KINDS:
                    await client.list(resource)
                return
            except NotFound:
                # Right after their creation the server does not know the paths yet.
                await asyncio.sleep(_POLL_S)


async def put_definitions(client: KubeClient) -> None:
    """Create our definitions, or update them to this version.

    It needs only the rights to create definitions and to patch ours. The chart's hook before an
    upgrade has no others.
    """
    for definition in read_crds():
        await put(client, CRDS, definition)


async def install_webhook(client: KubeClient, configuration: Mapping[str, Any]) -> None:
    """Create or correct our MutatingWebhookConfiguration."""
    await put(client, MUTATING_WEBHOOKS, configuration)


async def install_policies(client: KubeClient, documents: Iterable[Mapping[str, Any]]) -> bool:
    """Create or correct our admission policies and bindings. Return whether they are served.

    Kubernetes has them since 1.30. Without them only the controller's own rules hold.
    """
    kinds = {one.kind: one for one in (ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS)}
    try:
        for one in documents:
            await put(client, kinds[one["kind"]], one)
    except NotFound:
        return False
    return True


async def install_pod_policies(client: KubeClient, *, drops_managed_fields: bool) -> None:
    """Create, correct or remove the policies for pods of queued Jobs, each with its binding.

    Clusters serve such policies as v1 since Kubernetes 1.36. In others, nothing is done.
    """
    kinds = {one.kind: one for one in (MUTATING_POLICIES, MUTATING_POLICY_BINDINGS)}
    asked = {*((one.group, one.kind) for one in kinds.values()), _NATIVE_GROUPS}
    served = await find_served(client, asked)
    if not {*kinds.values()} <= {*served}:
        return
    has_groups = any((one.group, one.kind) == _NATIVE_GROUPS for one in served)
    for documents, is_wanted in (
        (build_released_pods_policy(), drops_managed_fields),
        (build_ungrouped_pods_policy(), has_groups),
    ):
        # The binding goes first, so that it never names a policy that is gone.
        for one in documents if is_wanted else reversed(documents):
            if is_wanted:
                await put(client, kinds[one["kind"]], one)
                continue
            with suppress(NotFound):
                await client.delete(kinds[one["kind"]], None, one["metadata"]["name"])


async def read_user(client: KubeClient) -> str:
    """Return the name under which the API server knows the user of this client."""
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    answer = await client.request("POST", path, body=asked)
    return str(answer["status"]["userInfo"]["username"])


async def remove_webhook(client: KubeClient, name: str) -> None:
    """Remove our MutatingWebhookConfiguration, if it is there."""
    try:
        await client.delete(MUTATING_WEBHOOKS, None, name)
    except NotFound:
        return


async def tell_view(client: KubeClient, url: str, authority_pem: str) -> None:
    """Publish the address of the view server for command lines (``client.view_server``)."""
    await put(client, NAMESPACES, {"metadata": {"name": VIEW_NAMESPACE}})
    data = {"url": url, "ca.crt": authority_pem, "service": None, "namespace": None}
    body = {"metadata": {"name": VIEW_NAME, "labels": {VIEW: SELF_MADE}}, "data": data}
    whole = {"apiVersion": CONFIGMAPS.api_version, "kind": CONFIGMAPS.kind, **body}
    try:
        await client.create(CONFIGMAPS, VIEW_NAMESPACE, _without_nulls(whole))
    except Conflict:  # the mark of its maker stays as it was
        await client.patch(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME, {"data": data})


async def forget_view(client: KubeClient) -> bool:
    """Remove the address of the view server if we wrote it. Return whether it was removed."""
    with suppress(NotFound, Conflict):
        meta = (await client.get(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME))["metadata"]
        if (meta.get("labels") or {}).get(VIEW) == SELF_MADE:
            await client.delete(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME, uid=meta["uid"])
            return True
    return False


async def put(
    client: KubeClient,
    resource: ApiResource,
    body: Mapping[str, Any],
    *,
    namespace: str | None = None,
) -> None:
    """Create an object, or merge ``body`` into the existing one."""
    whole = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
    try:
        await client.create(resource, namespace, _without_nulls(whole))
    except Conflict:
        name = body["metadata"]["name"]
        await client.patch(resource, namespace, name, whole, kind=PatchKind.MERGE)


def _without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``body`` without nulls, which delete a field in a merge patch only."""
    return {
        key: _without_nulls(one) if isinstance(one, Mapping) else one
        for key, one in body.items()
        if one is not None
    }
