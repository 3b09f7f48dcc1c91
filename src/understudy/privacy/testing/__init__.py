"""Record-and-replay of a mechanism on neighbouring data sets, and its statistics."""
