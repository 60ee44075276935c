"""Draft tokens: where they come from, and how often they are accepted.

The executor verifies them, and the policy sets their budget.
"""
