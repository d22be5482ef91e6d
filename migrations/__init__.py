"""Alembic migrations of ``fluxqueue db upgrade``. README.md says how to write one."""
