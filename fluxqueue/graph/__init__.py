"""The resource graph and its matcher. All of it is pure: times are integer arguments.

Read the packages in this order:

- ``model``: what a graph is.
- ``ledger``: what is booked on it, now and later.
- ``formats``: graphs and resource sets as text.
- ``match``: where a request fits. Three search methods exist: the table of ``shares``, the tables
  of whole ``vertices``, and Fluxion's ``walk``.
- ``tell``: why a request can never start, or cannot start now.
"""
