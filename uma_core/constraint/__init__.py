"""What an answer may look like: JSON Schema, regular expressions, choices and grammars, enforced token by token.

`compiler` turns a request's constraint into a `Matcher` on the intake's threads; the compute thread tells the matcher
every token and gets the set of tokens that may follow. llguidance does the work; `lib` alone imports it.
"""
