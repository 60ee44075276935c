"""How much memory there is, and what is done when it runs short."""
