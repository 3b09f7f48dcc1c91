"""Prompts, batched sampling, steering and remote endpoints."""
