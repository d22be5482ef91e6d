"""What one request can expect: now, later or never, and what would change that.

The matcher, the cycle and the forecast decide; this package asks them on the graph as it is, and
leaves it as it was. Pure: called by the worker with its live matcher, and by simulations.
"""
