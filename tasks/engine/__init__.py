"""What makes a core function a task: cache key, code digest, lease, checkpoint, progress, tracking."""
