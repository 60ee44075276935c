"""Options: declared in `options`; merged from flags, variables, files and presets; checked before anything is
loaded.
"""
