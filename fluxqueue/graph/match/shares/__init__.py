"""Shares of nodes: a table of nodes x resources, counted once and then corrected by row."""
