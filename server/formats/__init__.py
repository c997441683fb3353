"""How models write their answers: thinking, words and calls, and what reads them."""
