"""The parts of every control loop: shared local copies, work queues, events, times.

``controllers``, ``scheduler`` and ``nodes`` use them. This package knows none of these.
"""
