"""Alembic's entry point; run by ``fluxqueue.db.migrate`` only, which hands over a connection.

There is no alembic.ini: the configuration is built in code, so that the same migrations run from
a checkout, a wheel and an image. Only the schema ``public`` is compared with the tables;
procrastinate's tables live in a schema of their own that its revision alone touches.
"""

from __future__ import annotations

from alembic import context

from fluxqueue.db.migrate import is_ours
from fluxqueue.db.tables import metadata


def run() -> None:
    """Run the migrations on the connection in ``config.attributes``."""
    connection = context.config.attributes.get("connection")
    if connection is None:
        raise SystemExit("migrations run through `fluxqueue db upgrade`, see migrations/README.md")
    context.configure(
        connection=connection,
        target_metadata=metadata,
        include_name=is_ours,
        compare_type=True,
        compare_server_default=True,
        transaction_per_migration=True,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
