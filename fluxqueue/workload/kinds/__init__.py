"""The kinds of workloads: a module for each, ``kind`` with their interface, and their ``table``."""
