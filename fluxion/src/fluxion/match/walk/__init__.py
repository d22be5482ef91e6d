"""The reference walk: Fluxion's depth-first-and-up traversal, one vertex at a time."""
