"""An embedded Postgres for laptops, demos and tests: real Postgres, started by us.

Called by ``fluxqueue up``, ``demo`` and the tests when no ``DATABASE_URL`` is given. Production
uses a database of its own and never comes here. This package knows nothing of our tables; it may
import ``errors`` and ``settings`` and nothing else of ours, and it needs no database driver.
"""

from __future__ import annotations

from fluxqueue.localpg.binaries import PostgresBinaries, find_binaries
from fluxqueue.localpg.server import LocalPostgres

__all__ = ["LocalPostgres", "PostgresBinaries", "find_binaries"]
