"""What one request can expect: now, later or never, and which changes would help.

The matcher, the cycle and the forecast decide. This package asks them on the present graph, and
leaves it unchanged. Pure. The worker calls it with its live matcher, and so do simulations.
"""
