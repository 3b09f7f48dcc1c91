"""A run on rows with canaries in them: from request to report."""
