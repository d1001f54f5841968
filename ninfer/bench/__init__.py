"""Measurements. Nothing here runs while the server serves."""
