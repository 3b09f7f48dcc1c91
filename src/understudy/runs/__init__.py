"""A run from request to finished folder: validation, registration, run plan, export."""
