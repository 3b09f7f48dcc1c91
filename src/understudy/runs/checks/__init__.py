"""What a run needs around it, one module for each kind of thing."""
