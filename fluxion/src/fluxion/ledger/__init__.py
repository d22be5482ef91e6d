"""What is booked on vertices, and resource sets."""
