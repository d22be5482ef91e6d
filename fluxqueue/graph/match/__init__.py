"""Where a request fits: now, later, or ever."""
