"""What the values of Kubernetes objects are: types and fields, names, quantities, expressions.

The lowest floor of the server's side: pure, and without knowledge of any kind or request.
"""
