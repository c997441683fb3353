"""Grammars that begin after the end of thinking, and a bound for thinking."""
