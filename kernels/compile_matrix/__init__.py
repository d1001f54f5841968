"""Compiling kernels for GPUs that are not there, and reading from the result what would make them slow or fail."""
