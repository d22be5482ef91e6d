"""Graphs of vertices: built from documents or from nodes, compiled, and pruning filters."""
