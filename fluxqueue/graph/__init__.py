"""The resource graph and its matchers: pure, integer times handed in.

``pools`` matches slots to shares of nodes in the scheduling cycle; the modules beside it are the
graph matcher with Fluxion's semantics (whole vertices, any depth), which ``resource-query`` drives.
``formats`` reads and writes graphs and resource sets.
"""
