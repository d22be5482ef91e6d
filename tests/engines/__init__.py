"""Workflow engines and clients on a full queue, each in an environment of its own."""
