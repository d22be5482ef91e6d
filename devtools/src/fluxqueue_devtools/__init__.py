"""All parts of fluxqueue on one machine: ``fluxqueue up``, ``fluxqueue demo``, and their Postgres.

The command line loads ``up`` and ``demo.command`` by name. The product imports nothing of it.
"""
