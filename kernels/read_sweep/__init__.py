"""Reading memory once and doing nothing else: the ceiling that memory-bound kernels are measured against."""
