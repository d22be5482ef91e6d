"""What a graph is: vertices, levels, shapes; how one is built and checked."""
