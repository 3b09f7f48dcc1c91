"""Attacks: what a run gives away about whoever took part, beside controls that must be caught."""
