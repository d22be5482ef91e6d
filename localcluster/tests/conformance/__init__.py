"""Replays recorded conversations with a real API server against the embedded one."""
