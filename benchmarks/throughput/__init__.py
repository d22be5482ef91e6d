"""``make bench-throughput``: what a Job costs with fluxqueue, as ratios to Kubernetes alone.

=============  ====================================================================================
``__main__``   the arguments, and the order of the measurements
``ground``     the cluster: a real control plane with simulated nodes, or the embedded one
``load``       Jobs that are submitted as fast as they are taken, and waited for
``meters``     processor time by process, API requests by verb and resource, SQL by its text
``scenes``     what is measured one by one: latency, statements of a Job, a large gang, a rebuild
``report``     the tables, and the figures to reach
=============  ====================================================================================

Nothing here looks into the parts: processes, the API, and Postgres' own catalogue are all it reads.
"""
