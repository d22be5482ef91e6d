"""The life of a FluxJob in rows, from its first observation to what it leaves in the books.

Each module is one kind of writing.

- ``observations``: what was seen
- ``waiting``, ``decisions``, ``outlook``: what a cycle decided
- ``reconciling``, ``dependencies``: what follows
- ``steering``, ``queues``: what people want
- ``desired_state``, ``statuses``: what its objects must show
- ``rebuild``, ``drift_repair``: how rows and cluster come together again
"""
