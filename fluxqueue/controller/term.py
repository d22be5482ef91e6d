"""The controller's term: the right to write, and the confirmation that rows are compared.

Part of ``observer``. Every transaction that writes the state of the cluster begins here. So a
controller that was paused and replaced can commit nothing. The module does not depend on what is
written.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.leadership import CONTROLLER, check_term, confirm, doubt, seize
from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.process.settings import Settings

logger = logging.getLogger(__name__)

CONFIRMS = 10
"""How often the term is confirmed within the time after which a confirmation expires."""


class Term:
    """A controller's term, from its beginning until another term has begun.

    Parameters
    ----------
    number : the term.
    believed_s : how long (seconds) the queue continues after the last confirmation of this
        controller.
    """

    def __init__(self, database: Database, clock: Clock, number: int, *, believed_s: float) -> None:
        self.database, self.number = database, number
        self._clock, self._believed_s = clock, believed_s
        self._is_in_doubt = False

    @classmethod
    async def begin(
        cls, database: Database, settings: Settings, clock: Clock, identity: str
    ) -> Self:
        """Begin a term at once. Holders of an older term can commit nothing more."""
        number = await seize(database, CONTROLLER, identity)
        # Longer than a change of leaders takes, so that the queue continues meanwhile.
        return cls(database, clock, number, believed_s=2 * settings.lease_duration_s)

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[Transaction]:
        """Begin a transaction under our term.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        async with self.database.begin() as tx:
            await check_term(tx, CONTROLLER, self.number)
            yield tx

    async def doubt(self) -> None:
        """Record that rows match neither their former state nor the cluster: no process may act."""
        # Set before the write: a confirmation in between would lift the doubt.
        self._is_in_doubt = True
        async with self.begin_write() as tx:
            await doubt(tx, CONTROLLER, term=self.number)

    async def believe(self) -> None:
        """Record that rows and cluster are reconciled, so that the queue continues."""
        self._is_in_doubt = False
        async with self.begin_write() as tx:
            await self._confirm(tx)
            await tx.wake_matcher()

    async def confirm_for_ever(self) -> None:
        """Confirm at intervals that rows are compared, however slow the API server is."""
        while True:
            await self._clock.sleep(self._believed_s / CONFIRMS)
            if self._is_in_doubt:
                continue
            try:
                async with self.begin_write() as tx:
                    await self._confirm(tx)
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": "confirm", "error": str(error)})

    async def _confirm(self, tx: Transaction) -> None:
        if await confirm(tx, CONTROLLER, term=self.number, duration_s=self._believed_s):
            await sweep(tx)
