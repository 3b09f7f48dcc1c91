"""Gradient matching (GRADMM): readable synthetic examples whose gradient matches the noised real one."""
