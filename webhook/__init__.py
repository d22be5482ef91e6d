"""The admission webhook: its own small image; see webhook/server.py."""
