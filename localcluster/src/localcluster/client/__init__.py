"""How controllers and simulated nodes reach an API server: requests, watches, local copies.

The same calls go to the server of this process (``inprocess``) and, for simulated nodes of a
control plane elsewhere, over HTTP (``http``). Not a client for everybody: it repeats nothing,
because whoever calls it works from a queue that tries again.
"""
