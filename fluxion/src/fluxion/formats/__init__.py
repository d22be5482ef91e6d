"""Graphs and resource sets as text: JGF and GRUG are read, JGF, RV1 and others are written.

The output is byte for byte that of Fluxion, for formats that Fluxion has. ``jgf`` reads with
``jgf_text``, and ``rv1`` reads an R. ``writers`` write what one job was given, ``export`` a whole
graph. Nothing is decided here: ``match`` does that.
"""
