"""The entry point of Alembic. Only ``fluxqueue.db.migrate`` runs it, and passes a connection.

There is no alembic.ini. The configuration is built in code, so that the same migrations run from
a checkout, a wheel and an image. Only the schema ``public`` is compared with the tables. The tables
of procrastinate have their own schema, which only their revision changes.
"""

from __future__ import annotations

from alembic import context

from fluxqueue.db.migrate import is_ours, note_digest
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
        on_version_apply=note_digest,
    )
    with context.begin_transaction():
        context.run_migrations()


run()
