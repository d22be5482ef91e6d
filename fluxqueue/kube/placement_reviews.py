"""Ask the queue when something starts: create a PlacementReview, wait, and delete it.

The command line and the view server call it with the credentials of the user. The worker answers
(``worker.review_tasks``).
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PLACEMENT_REVIEWS
from fluxqueue.kube.steer import FIELD_MANAGER
from fluxqueue.workload.objects import Object

_LOOK_S = 0.1


async def ask(client: KubeClient, namespace: str, spec: Object, limit_s: float) -> Object:
    """Create a review, wait for its answer, and delete it.

    Raises
    ------
    ApiError
        The API server refuses the review.
    ApiUnavailable
        The answer did not come in time.
    """
    # Users cannot list reviews: a random name keeps the answer private to this user.
    name = f"explain-{secrets.token_hex(8)}"
    at = (PLACEMENT_REVIEWS, namespace, name)
    body = {
        "apiVersion": PLACEMENT_REVIEWS.api_version,
        "kind": PLACEMENT_REVIEWS.kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }
    review = await client.create(PLACEMENT_REVIEWS, namespace, body, field_manager=FIELD_MANAGER)
    try:
        async with asyncio.timeout(limit_s):
            while not (review.get("status") or {}).get("answeredAt"):
                await asyncio.sleep(_LOOK_S)
                review = await client.get(*at)
    except TimeoutError:
        raise ApiUnavailable(
            f"no answer within {limit_s:g} s: do controller and workers run, and does a worker hold"
            " the matcher's role (fluxqueue check)?"
        ) from None
    finally:
        with suppress(ApiError, ApiUnavailable):
            await client.delete(*at)
    return review
