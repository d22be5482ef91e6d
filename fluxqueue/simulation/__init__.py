"""A discrete-event simulator of the production cycle: ``fluxqueue sim``, tests, benchmarks.

It runs on virtual time with the same ``run_cycle``, ``top_up`` and queue policies as the worker. It
never reaches a database, a cluster or the machine's clock. The same seed gives the same result.
"""
