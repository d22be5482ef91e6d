"""Simulated kubelets: they register, beat, and let pods run as long as their annotations say."""
