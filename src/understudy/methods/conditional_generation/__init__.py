"""Conditional generation: DP multitask fine-tuning with PPLM steering."""
