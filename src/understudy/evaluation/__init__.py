"""What is measured of synthetic text beside real one: utility, fidelity, diversity, memorisation."""
