"""Our own engine: a model's graph built over ggml.h, KV in pages that sequences share, prompts read in pieces of the
same graph.
"""
