"""Chat templates, tool calls and reasoning: turns messages into a prompt and a constraint, and the model's text into
messages.

`Templates.apply` turns a conversation into `Applied`; `Parser` turns the answer's text into `Diff`s. Both are
llama.cpp's own chat code, in one shared object (native/chat). The process that tries a template (check.py) imports
only what it needs: all modules take longer to import than most templates to try.
"""
