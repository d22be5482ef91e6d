"""The embedded cluster as the product's client sees it: its configuration, and a way in-process.

``localcluster`` knows nothing of ``fluxqueue.kube``, nor the other way round. Tests bring
them together.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from localcluster.errors import ApiUnavailable
from localcluster.inprocess import InProcessTransport as Inner

from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.transport import Reply, StreamReply, TransportError
from localcluster import LocalCluster


def config_of(cluster: LocalCluster) -> ClusterConfig:
    """The administrator's configuration."""
    return ClusterConfig(server=cluster.url, ca_pem=cluster.ca_pem.decode(), token=cluster.token)


class InProcessTransport:
    """A ``fluxqueue.kube.transport.Transport`` to a cluster of this process, without a socket."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._inner = Inner(cluster.server)

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Send and read the whole answer."""
        try:
            reply = await self._inner.send(method, target, headers, body, timeout_s)
        except ApiUnavailable as error:
            raise TransportError(str(error), is_unsent=False) from error
        return Reply(reply.status, reply.headers, reply.body)

    @asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AsyncIterator[StreamReply]:
        """GET with a streamed answer."""
        async with self._inner.stream(target, headers, idle_s) as reply:
            yield reply

    async def close(self) -> None:
        """Nothing to close."""
