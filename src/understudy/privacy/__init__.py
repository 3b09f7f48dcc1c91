"""Differential privacy: labels, ledger, accounting, noise, the mechanism interface and the DP trainer."""
