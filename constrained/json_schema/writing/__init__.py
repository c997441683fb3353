"""From shapes to the rules of a grammar, in EBNF or Lark."""
