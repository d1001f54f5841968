"""Seeded generators of conversations and text, for training and for held-out cases."""
