"""The view server: what the queue knows, as JSON, for callers that may see it.

It writes nothing. ``server`` answers requests by the table in ``endpoints``. ``rights`` asks the
API server for the identity and the rights of the caller. ``changes`` sends changes to followers. It
reads through ``db.reading`` with a read-only role, and neither decides nor steers.
"""
