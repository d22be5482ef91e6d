"""The admission webhook, which has its own small image. See webhook/server.py."""
