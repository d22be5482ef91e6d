"""A server of the Model Context Protocol over the client, for assistants and agents.

``fluxqueue mcp`` runs it on standard input and output. ``protocol`` knows the messages and
``tools`` what can be asked.
"""
