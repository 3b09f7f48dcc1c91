"""One Prefect flow per method, and the command line."""
