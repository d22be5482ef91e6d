"""Reasons in words: why never, why not now, what is in the way, what has been lost."""
