"""Preference optimisation (POPri): federated clients' noisy scores train a generator by DPO."""
