"""Which rank runs where, and where ranks meet."""
