"""Graphs and resource sets as text: JGF and GRUG read into a graph; JGF, RV1 and the rest written.

Byte for byte as Fluxion does it, where it does. ``jgf`` reads with the help of ``jgf_text``,
``rv1`` reads an R, ``writers`` write what one job was given, ``export`` a whole graph. Must not
decide anything: matching is the folder above.
"""
