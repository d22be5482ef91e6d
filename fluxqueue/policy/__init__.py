"""Queue policies: the order of jobs, and which may hold a reservation or backfill. Pure."""
