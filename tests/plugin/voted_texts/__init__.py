"""A method of an installed package; see method.py."""
