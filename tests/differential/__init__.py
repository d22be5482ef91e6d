"""What fluxqueue places, kube-scheduler binds. What it calls impossible, kube-scheduler refuses.

Random clusters and random pods, on the embedded scheduler and on the real one.
"""
