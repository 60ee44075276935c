"""Draft tokens: where they come from, and how often they hold.

The executor verifies them, and the policy sets their budget.
"""
