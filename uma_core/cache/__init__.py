"""KV that outlives a request: a radix tree over tokens, and snapshots in RAM and on disk.

Owned by the compute thread.
"""
