"""Tool calls: what a request offers, what constrains the answer, and what reads calls out of it."""
