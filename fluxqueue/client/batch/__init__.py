"""Batch scripts and commands, translated to the Job that they describe.

``client`` and the command line submit that Job. Nothing here calls the API server.
"""
