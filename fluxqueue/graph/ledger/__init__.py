"""What is booked on a graph: now, later, and by unmanaged pods."""
