"""Storage formats of attention rows."""
