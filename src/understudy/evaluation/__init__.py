"""How useful the synthetic text is: utility, fidelity, diversity."""
