"""What is booked: now, later, and by others."""
