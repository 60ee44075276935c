"""Sockets, clients and the I/O thread's loop."""
