"""Alembic revisions of the queue database; run by `fluxqueue db upgrade`."""
