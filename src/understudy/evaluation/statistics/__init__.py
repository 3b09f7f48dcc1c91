"""How sure a figure is, and how figures of several runs compare."""
