"""The HTTP side: protocol adapters between clients and the actors (serving spec)."""
