"""Who somebody is and what he may do, as the API server says: TokenReview, SubjectAccessReview.

Called by the worker that answers PlacementReviews and by the view server. Nothing is remembered
here, and nothing decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import ACCESS_REVIEWS, TOKEN_REVIEWS, Resource
from fluxqueue.workload.placement_review import Asker, read_asker


async def who_is(client: KubeClient, token: str) -> Asker | None:
    """Whose a bearer token is; None where it is nobody's.

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
    resource: Resource,
    namespace: str = "",
    name: str = "",
) -> bool:
    """Whether somebody may; ``namespace`` empty is all of them, ``name`` empty all objects.

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


def _review(resource: Resource, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "spec": dict(spec)}
