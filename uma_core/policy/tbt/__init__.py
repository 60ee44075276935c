"""The time between tokens (TBT) of interactive streams: limits -> controller -> share, to be read in this order.

limits: what each stream was promised. controller: how much room the next gap has. share: who gets it.
"""
