"""Where a request fits on a graph of vertices: by tables, or by the reference walk."""
