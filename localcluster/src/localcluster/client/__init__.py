"""How controllers and simulated nodes reach an API server: requests, watches, local copies.

The same calls go to the server of this process (``inprocess``). Simulated nodes of another control
plane use HTTP (``http``). It is not a general client: it repeats nothing, because its callers work
from a queue that retries.
"""
