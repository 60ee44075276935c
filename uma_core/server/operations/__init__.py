"""What the daemon does with each operation of the protocol."""
