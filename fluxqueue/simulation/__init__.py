"""A discrete-event simulator around the production cycle: ``fluxqueue sim``, tests, benchmarks.

Virtual time, the same ``run_cycle``, ``top_up`` and queue policies as the worker's. Never reaches
a database, a cluster or the machine's clock, and gives the same result for the same seed.
"""
