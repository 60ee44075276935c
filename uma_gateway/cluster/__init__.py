"""Several daemons behind one gateway: Ray Serve places and heals them, the router here chooses among them."""
