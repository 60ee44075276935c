"""The time between tokens (TBT): how long gaps may be (limits), and how much room the next one has (controller)."""
