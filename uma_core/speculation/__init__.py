"""Draft tokens: where they come from, and how often they hold.

Verification is the executor's, the budget the policy's.
"""
