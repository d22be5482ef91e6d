"""Queue policies: who goes next, who may hold a reservation, who may backfill. Pure."""
