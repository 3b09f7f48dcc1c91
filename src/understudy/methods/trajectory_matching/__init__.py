"""Trajectory matching: a large instruction set distilled into a few rows with learned pseudo tokens (NACD)."""
