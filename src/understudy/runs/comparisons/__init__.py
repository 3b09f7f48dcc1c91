"""Several runs on the same rows: from request to report."""
