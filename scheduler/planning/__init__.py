"""What each step computes."""
