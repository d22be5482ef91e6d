"""The controller's term: the right to write, and the word that somebody compares the rows.

Part of ``observer``. Every transaction that writes what the cluster shows is begun here, so that a
controller that was paused and replaced can commit nothing. It knows nothing of what is written.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.leadership import CONTROLLER, check_term, confirm, doubt, seize
from fluxqueue.db.life.owed import sweep
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.settings import Settings

logger = logging.getLogger(__name__)

CONFIRMS = 10
"""How often it says that it is there, in the time after which nobody would believe it."""


class Term:
    """A controller's term, from its beginning until another has begun.

    Parameters
    ----------
    number : the term.
    believed_s : for how long (seconds) the queue goes on after the last word of this controller.
    """

    def __init__(self, database: Database, clock: Clock, number: int, *, believed_s: float) -> None:
        self.database, self.number = database, number
        self._clock, self._believed_s = clock, believed_s
        self._is_in_doubt = False

    @classmethod
    async def begin(
        cls, database: Database, settings: Settings, clock: Clock, identity: str
    ) -> Self:
        """Begin a term at once; whoever believes in an older one can commit no more."""
        number = await seize(database, CONTROLLER, identity)
        # Longer than it takes until another controller leads: then the queue goes on meanwhile.
        return cls(database, clock, number, believed_s=2 * settings.lease_duration_s)

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[Transaction]:
        """A transaction under our term.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        async with self.database.begin() as tx:
            await check_term(tx, CONTROLLER, self.number)
            yield tx

    async def doubt(self) -> None:
        """Say that the rows are neither as before nor as the cluster: nobody may act on them."""
        self._is_in_doubt = True
        async with self.begin_write() as tx:
            await doubt(tx, CONTROLLER, term=self.number)

    async def believe(self) -> None:
        """Say that rows and cluster have been brought together; the queue goes on."""
        self._is_in_doubt = False
        async with self.begin_write() as tx:
            await self._confirm(tx)
            await tx.wake_matcher()

    async def confirm_for_ever(self) -> None:
        """Say that somebody compares the rows with the cluster, however slow the API server is."""
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
