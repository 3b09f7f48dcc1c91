"""Training with per-example clipping and noise."""
