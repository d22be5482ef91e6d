"""One scheduling cycle over a snapshot: pure decisions, no clock, no rows, no sockets."""
