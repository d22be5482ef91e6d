"""The story that ``fluxqueue demo`` tells: scenes on a live cluster, watched and verified."""
