"""FluxJobs page by page, filtered by the API server as far as it can.

``jobs``, ``top`` and ``tree`` use it. They would otherwise read very many FluxJobs to show a few.
They also filter themselves, because a server without selectable fields filters nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fluxqueue.client.fluxjob_lists import state_selector
from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient, ListResult
from fluxqueue.kube.resources import FLUXJOBS

PAGE = 500
"""FluxJobs per page."""
NOT_SELECTABLE = 400
"""Answer of a server without selectable fields."""


@dataclass(slots=True)
class Narrowed:
    """FluxJobs of a namespace (None: all) and of a user (empty: all).

    ``version`` is that of the first page that was read. A watch from there misses nothing that
    later pages show.
    """

    client: KubeClient
    namespace: str | None
    user: str = ""
    is_selecting: bool = True
    version: str = ""

    async def pages(
        self, states: frozenset[str], *, limit: int = PAGE
    ) -> AsyncGenerator[ListResult, None]:
        """Yield FluxJobs in ``states`` page by page, in the server's order.

        A server that cannot select sends all of them. ``is_selecting`` is False from the first page
        on.

        Raises
        ------
        Gone
            It took so long that the server has forgotten this list.
        ApiError, ApiUnavailable
            The server refuses, or cannot be reached.
        """
        selector = state_selector(states, self.user) if self.is_selecting else ""
        try:
            async with aclosing(
                self.client.pages(FLUXJOBS, self.namespace, field_selector=selector, limit=limit)
            ) as pages:
                async for page in pages:
                    self.version = self.version or page.resource_version
                    yield page
            return
        except ApiError as error:
            if not selector or error.code != NOT_SELECTABLE:
                raise
        self.is_selecting = False
        async with aclosing(self.pages(states, limit=limit)) as pages:
            async for page in pages:
                yield page
