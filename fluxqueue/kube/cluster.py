"""The identity of the cluster: the UID of its namespace ``kube-system``.

Each process reads it once before it uses the database (``db/cluster_identity.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fluxqueue.errors import ApiError, ApiUnavailable, InvalidSettings
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import NAMESPACES

NAMESPACE = "kube-system"
RETRY_S = 1.0


async def read_cluster_uid(client: KubeClient, sleep: Callable[[float], Awaitable[None]]) -> str:
    """Return the UID of the cluster. Wait while the API server is unavailable.

    Raises
    ------
    InvalidSettings
        This process may not read the namespace.
    """
    while True:
        try:
            found = await client.get(NAMESPACES, None, NAMESPACE)
        except ApiUnavailable:
            await sleep(RETRY_S)
        except ApiError as error:
            raise InvalidSettings(
                f"the cluster cannot be identified: {error}",
                where=f"namespace {NAMESPACE}",
                hint="grant `get` on it to the service accounts, as the chart does",
            ) from error
        else:
            return str(found["metadata"]["uid"])
