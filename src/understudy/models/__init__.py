"""Loading, adapting and checkpointing causal language models."""
