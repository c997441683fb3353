"""Thinking: whether a request does it, and telling it from the answer."""
