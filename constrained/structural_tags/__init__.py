"""Structural tags as grammars for llguidance, whose lexer needs care where free text meets a tag."""
