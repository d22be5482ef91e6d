"""Reasons of a graph of vertices, in words."""
