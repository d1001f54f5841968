"""Torch building blocks whose bits for one row never depend on the rows beside it (design, section 3)."""
