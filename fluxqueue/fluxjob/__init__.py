"""The words of the domain as data: states, requests, nodes, slots, and the follow rule.

Pure: everything here is a frozen value or a function of values. Every layer above imports it:
jobspec, workload, graph, scheduler, db, controller, worker and webhook. It imports only ``errors``.
"""
