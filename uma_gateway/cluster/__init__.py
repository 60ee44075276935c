"""Several daemons behind one gateway: Ray Serve starts them and replaces lost ones; the router here chooses
among them.
"""
