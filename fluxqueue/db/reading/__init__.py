"""Reads the rows for people, metrics and ``fluxqueue check``. Nothing here writes."""
