"""What texts are like by themselves and beside real ones: fidelity, diversity, memorisation, likelihood."""
