"""Products of a few columns with matrices of 4, 5, 6 or 8 bits, nearly as fast as the matrices can be read."""
