"""Fluxion's matcher on any graph: what ``fluxqueue resource-query`` drives.

It matches whole vertices as flux-sched does, reads and writes its formats, and answers its
commands. The queue never imports it: the cycle's matcher is ``fluxqueue.graph``, which this
package shares for nodes, constraints and the table. All of it is pure.

Read the packages in this order:

- ``model``: what a graph is, how it is built, also from nodes, and the types that are summed up.
- ``ledger``: what is booked on vertices, now and later.
- ``formats``: graphs and resource sets as text.
- ``match``: the walk of the reference, and the tables of whole vertices that give its answers.
- ``tell``: why a request does not fit.
- ``matcher``: all of it as one object.
"""
