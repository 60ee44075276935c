"""The wire protocol: bytes in, messages out; events in, bytes out. No sockets, no sessions, no clock."""
