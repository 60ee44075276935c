"""KV memory that outlives a request: a radix tree over tokens, snapshots in RAM and on disk.

Owned by the compute thread.
"""
