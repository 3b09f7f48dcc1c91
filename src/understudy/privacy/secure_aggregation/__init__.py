"""Sums of masked vectors, of which the server sees nothing but the noised total."""
