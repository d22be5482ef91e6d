"""The resource graph and its matcher: pure, integer times handed in.

To be read in this order: ``model`` (what a graph is), ``ledger`` (what is booked on it, now and
later), ``formats`` (graphs and resource sets as text), ``match`` (where a request fits: by the
table of ``shares``, by the tables of whole ``vertices``, or by Fluxion's ``walk``), ``tell`` (why
never, why not now).
"""
