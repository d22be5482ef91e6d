"""FluxJobs page by page, narrowed by the API server as far as it can.

For the verbs that would otherwise read very many to show a few: ``jobs``, ``top``, ``tree``. They
look again at what comes, since a server older than selectable fields narrows nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fluxqueue.cli.user.fluxjobs import state_selector
from fluxqueue.errors import ApiError
from fluxqueue.kube.client import KubeClient, ListResult
from fluxqueue.kube.resources import FLUXJOBS

PAGE = 500
"""FluxJobs."""
NOT_SELECTABLE = 400
"""Answer of a server that knows no selectable fields."""


@dataclass(slots=True)
class Narrowed:
    """FluxJobs of a namespace (None: of all) and a user (empty: of all).

    ``version`` is that of the first page that was read: who watches from there misses nothing of
    what later pages show.
    """

    client: KubeClient
    namespace: str | None
    user: str = ""
    is_selecting: bool = True
    version: str = ""

    async def pages(
        self, states: frozenset[str], *, limit: int = PAGE
    ) -> AsyncGenerator[ListResult, None]:
        """Those in ``states``, page by page in the server's order; all of them where it selects
        nothing, which ``is_selecting`` says from the first page on.

        Raises
        ------
        Gone
            It took so long that the server has forgotten this list.
        ApiError, ApiUnavailable
            It refuses, or cannot be reached.
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
