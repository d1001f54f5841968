"""Decisions about guessed tokens: where to copy them from, how many are worth while, and what became of them."""
