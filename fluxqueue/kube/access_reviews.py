"""The identity and the rights of a user, by TokenReview and SubjectAccessReview.

The worker that answers PlacementReviews calls it, and so does the view server. It caches nothing
and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, ApiResource
from fluxqueue.workload.placement_review import Asker, read_asker


async def who_is(client: KubeClient, token: str) -> Asker | None:
    """Return the user of a bearer token, or None if the API server does not know it.

    Raises
    ------
    ApiUnavailable, ApiError
        The API server cannot be asked.
    """
    told = await client.create(TOKEN_REVIEWS, None, _review(TOKEN_REVIEWS, {"token": token}))
    status = told.get("status") or {}
    asker = read_asker(status.get("user") or {})
    return asker if status.get("authenticated") and asker.username else None


async def may(
    client: KubeClient,
    asker: Asker,
    verb: str,
    resource: ApiResource,
    namespace: str = "",
    name: str = "",
) -> bool:
    """Return whether ``asker`` may use ``verb`` on objects of ``resource``.

    An empty ``namespace`` means all namespaces, an empty ``name`` all objects.

    Raises
    ------
    ApiUnavailable, ApiError
        The API server cannot be asked.
    """
    attributes = {
        "verb": verb,
        "group": resource.group,
        "resource": resource.plural,
        "namespace": namespace,
        "name": name,
    }
    spec = asker.to_json()
    spec["user"] = spec.pop("username")
    spec["resourceAttributes"] = {key: one for key, one in attributes.items() if one}
    told = await client.create(ACCESS_REVIEWS, None, _review(ACCESS_REVIEWS, spec))
    return bool((told.get("status") or {}).get("allowed"))


def _review(resource: ApiResource, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "spec": dict(spec)}
