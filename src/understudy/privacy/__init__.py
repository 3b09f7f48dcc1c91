"""Differential privacy: labels, ledger, accounting, noise, the gateway and the DP trainer."""
