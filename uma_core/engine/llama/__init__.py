"""LlamaEngine: the Engine contract over llama.h, and EncoderEngine for models that write no text."""
