"""Which engine computes a model."""
