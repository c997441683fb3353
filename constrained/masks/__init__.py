"""Vocabulary masks: the rows of a step, and filling them."""
