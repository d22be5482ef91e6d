"""Certificates of servers: made in ``pairs``, kept in a folder or a Secret, served and replaced."""

CERTIFICATE, KEY = "tls.crt", "tls.key"
"""The names of a certificate and of its key, in a folder as in a Secret."""
