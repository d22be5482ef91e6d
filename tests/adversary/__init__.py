"""What tenants, and the world around, may do to the queue. Nothing of it may harm other tenants."""
