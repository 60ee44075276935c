"""The form that an answer must have: JSON Schema, regular expressions, choices and grammars, enforced token by token.

`compiler` turns a request's constraint into a `Matcher` on the intake's threads. The compute thread gives each
token to the matcher and gets the set of tokens that may follow. llguidance does the work; only `lib` imports it.
"""
