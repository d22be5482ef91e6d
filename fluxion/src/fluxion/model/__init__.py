"""Graphs made of nodes, and pruning filters."""
