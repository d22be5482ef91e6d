"""The life of a FluxJob in rows, from its first observation to what it leaves in the books.

Each module is one kind of writing: what was seen (``observations``), what a cycle decided
(``waiting``, ``decisions``, ``outlook``), what follows (``settling``, ``dependencies``), what
people want (``steering``, ``queues``), what its objects are to be (``desired_state``,
``published``), and how rows and cluster come together again (``rebuild``, ``drift_repair``).
"""
