"""What every control loop is made of: shared local copies, work queues, events, times.

Used by ``controllers``, ``scheduler`` and ``nodes``; none of them is known here.
"""
