"""The domain's own words as data: states, requests, nodes, slots, and how a workload is followed.

Pure: everything here is a frozen value or a function of values. Imported by every layer above
(jobspec, workload, graph, scheduler, db, controller, worker, webhook); imports only ``errors``.
"""
