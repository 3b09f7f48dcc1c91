"""Two tables compared: from request to report."""
