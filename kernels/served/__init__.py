"""The Triton kernels that a server runs, as a whole: their names in the cache on disk, their claim on memory."""
