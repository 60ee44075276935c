"""The I/O side of the daemon: sockets, clients, handlers, and the intake of prompts."""
