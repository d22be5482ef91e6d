"""Matching whole vertices: one row per node for each request, updated with bookings."""
