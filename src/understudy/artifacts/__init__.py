"""Artifacts: references that verify themselves, and the stores behind them."""
