"""The values of Kubernetes objects: types and fields, names, quantities, expressions.

This is the lowest layer of the server. It is pure and knows no kinds and no requests.
"""
