"""What tenants, and the world around, may do to the queue; nothing of it may harm other tenants."""
