"""The HTTP gateway: what programs that speak OpenAI's, Anthropic's, Ollama's or llama-server's API talk to instead
of the socket.
"""
