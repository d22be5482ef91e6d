"""The view server: what the queue knows, as JSON, to whoever may see it. It writes nothing.

``server`` answers requests by the table in ``endpoints``; ``rights`` asks the API server who calls
and what he may list; ``changes`` tells followers what happens. It reads through ``db.reading``, as
a role that may look only, and knows nothing of deciding or steering.
"""
