"""The only access to Postgres: tables, transactions, and the task queue inside them.

Controller, worker and command line call it. No other package imports SQLAlchemy or psycopg.
"""
