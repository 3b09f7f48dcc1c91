"""Prefect tasks over the core: cached, checkpointed, tracked."""
