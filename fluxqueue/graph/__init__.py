"""The cluster as the queue sees it, and its matcher. All of it is pure: times are arguments.

Read the packages in this order:

- ``ledger``: what is booked on the nodes, now and later.
- ``match``: where a request fits.
- ``tell``: why a request can never start, or cannot start now.

Fluxion's matcher on any graph is ``fluxion``, which builds on this package.
"""
