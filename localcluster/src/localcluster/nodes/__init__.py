"""Simulated kubelets: they register, renew Leases, and run pods as annotations say."""
