"""The request log: what was asked, what came of it and how long it took, never what was said (serving spec, 16)."""
