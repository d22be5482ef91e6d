"""Users' commands: they need a kubeconfig with its rights, and nothing else.

There is one file per subject, imported by ``cli.main``. Everything goes through the Kubernetes API.
Reading is LIST and WATCH. Steering is a patch of the FluxJob's spec, which admission checks and the
API server audits. No command here knows a database: ``cli.db`` is for the administrator at one.
"""
