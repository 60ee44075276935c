"""Generates and compiles `uma_core._llama` from llama.cpp's headers. Build-time code, not installed."""
