"""Reading the rows for people, metrics and ``fluxqueue check``; nothing here writes."""
