"""What users type: the verbs that need a kubeconfig and its rights, and nothing else.

One file per subject, imported by ``cli.main``. Everything goes through the Kubernetes API: reading
is LIST and WATCH, steering is a patch of the FluxJob's spec, which admission judges and the API
server audits. No database is known here; what an administrator does beside one is ``cli.steering``.
"""
