"""The report a run leaves behind."""
