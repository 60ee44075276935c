"""Build-time code for the native half: fetches, builds and caches llama.cpp. Not installed."""
