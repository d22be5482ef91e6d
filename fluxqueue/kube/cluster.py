"""Which cluster this is: the UID of its namespace ``kube-system``.

Called once by each process before it uses the database (``db/cluster_identity.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fluxqueue.errors import ApiError, ApiUnavailable, InvalidSettings
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import NAMESPACES

NAMESPACE = "kube-system"
RETRY_S = 1.0


async def read_cluster_uid(client: KubeClient, sleep: Callable[[float], Awaitable[None]]) -> str:
    """Return the UID of the cluster; an API server that is away is waited for.

    Raises: ``InvalidSettings`` when this process may not read the namespace.
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
                hint="grant `get` on it to the service accounts; the chart does",
            ) from error
        else:
            return str(found["metadata"]["uid"])
