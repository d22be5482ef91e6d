"""Whole vertices: a row per node for each request, kept with its bookings."""
