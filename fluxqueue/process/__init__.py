"""What each process of fluxqueue has: settings, logs, metrics, probes, pauses, files and keys.

Every room above may use it. It knows nothing of jobs, of the cluster and of the database.
"""
