"""The one door to Postgres: tables, transactions, and the task queue inside them.

Called by controller, worker and command line; nothing else imports SQLAlchemy or psycopg.
"""
