"""The interface of a grammar engine, its registry, and the engines: llguidance, xgrammar, outlines, and ``auto``."""
