"""Alembic migrations, applied by ``fluxqueue db upgrade``; README.md says how to write one."""
