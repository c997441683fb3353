"""What comes back of a request: an ordered stream of text, thinking, calls and an end."""
