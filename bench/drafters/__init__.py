"""What drafts bring: whether answers stay the same, steps and tokens a second. ``make bench-drafters``."""
