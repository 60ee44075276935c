"""The HTTP gateway. Programs that speak OpenAI's, Anthropic's, Ollama's or llama-server's API use it instead of the
socket.
"""
