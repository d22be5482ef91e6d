"""Graphs: their vertices, levels and shapes, and how a graph is built and checked."""
