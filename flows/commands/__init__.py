"""What each command does; a module is imported only when its command runs."""
