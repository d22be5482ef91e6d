"""Kubernetes objects as data: what is managed, what it asks for, how it is released. No I/O.

Called by the webhook (admission) and by the controller (wrapping). It must not use a client, a
database or the scheduler.
"""
