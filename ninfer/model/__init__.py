"""The forward pass of the hybrid family, written once over ``ninfer.kernels`` and driven by dimensions."""
