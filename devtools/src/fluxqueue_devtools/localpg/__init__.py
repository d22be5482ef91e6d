"""An embedded Postgres for laptops, demos and tests: a real Postgres, started by fluxqueue.

``fluxqueue up``, ``demo`` and the tests use it if no ``DATABASE_URL`` is given. Production has its
own database and does not use this package. The package knows nothing of our tables. Of our modules
it may import only ``errors`` and ``settings``, and it needs no database driver.
"""

from __future__ import annotations

from fluxqueue_devtools.localpg.binaries import PostgresBinaries, find_binaries
from fluxqueue_devtools.localpg.postgres import LocalPostgres

__all__ = ["LocalPostgres", "PostgresBinaries", "find_binaries"]
