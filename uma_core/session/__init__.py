"""Sessions: one accepted request each, from queue to final event. Owned by the compute thread."""
